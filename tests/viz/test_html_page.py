import json
import re

import pytest
from tests.browser.page_texts import use_language

from polyhead.core.errors import UserError
from polyhead.viz.html_page import read_asset, render_html, save_page, script_catalog


def read_catalogs(html):
    pattern = r'<script type="application/json" id="catalog">(.*?)</script>'
    return [json.loads(text) for text in re.findall(pattern, html, re.DOTALL)]


def test_page_has_language_and_catalog_of_script():
    script = 't("layer {n}", { n: 2 }); t( "mean" ); t("untranslated"); put("reading"); t(name)'
    with use_language("zh"):
        html = render_html("Title", "", [], script=script)
        assert read_catalogs(script_catalog('t("mean"); make("Layer")')) == [{"mean": "平均"}]
    (catalog,) = read_catalogs(html)
    assert '<html lang="zh">' in html
    assert (catalog["layer {n}"], catalog["mean"]) == ("第 {n} 层", "平均")
    assert catalog["untranslated"] == "untranslated"
    assert html.index('id="catalog"') < html.index("const CATALOG")
    english = render_html("Title", "", [])
    assert '<html lang="en">' in english and read_catalogs(english) == []


@pytest.mark.parametrize("name", ["page.js", "draw.js"])
def test_every_text_of_script_is_translated(name):
    with use_language("zh"):
        catalogs = read_catalogs(script_catalog(read_asset(name, "polyhead.viz")))
    for catalog in catalogs:
        assert not [text for text, translation in catalog.items() if text == translation]


def test_directory_in_place_of_page_is_an_error(tmp_path):
    (tmp_path / "pages").mkdir()
    with pytest.raises(UserError, match="pages is a directory; expected a file in it"):
        save_page(tmp_path / "pages", "<p>")
    assert list(tmp_path.rglob("*")) == [tmp_path / "pages"]
