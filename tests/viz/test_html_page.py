"""The document around every page: its language, and the texts that its script needs in that language."""

import json
import re

import pytest

from polyhead.core import i18n
from polyhead.viz.html_page import read_asset, render_html, script_catalog

CATALOG = re.compile(r'<script type="application/json" id="catalog">(.*?)</script>', re.DOTALL)


@pytest.fixture(autouse=True)
def reset_language():
    yield
    i18n.set_language(None)


def test_a_page_names_its_language_and_holds_the_texts_of_its_script_in_it():
    script = 't("layer {n}", { n: 2 }); t( "mean" ); t("of nobody"); put("reading"); t(name)'
    i18n.set_language("zh")
    html = render_html("Title", "", [], script=script)
    (catalog,) = CATALOG.findall(html)
    found = json.loads(catalog)
    assert '<html lang="zh">' in html
    assert (found["layer {n}"], found["mean"]) == ("第 {n} 层", "平均")
    assert found["of nobody"] == "of nobody"
    assert html.index('id="catalog"') < html.index("const CATALOG")


def test_an_english_page_holds_no_catalog():
    html = render_html("Title", "", [])
    assert '<html lang="en">' in html
    assert not CATALOG.search(html)


def test_a_catalog_holds_only_what_its_script_translates():
    i18n.set_language("zh")
    (catalog,) = CATALOG.findall(script_catalog('t("mean"); make("Layer")'))
    assert json.loads(catalog) == {"mean": "平均"}


@pytest.mark.parametrize(("package", "name"), [("polyhead.viz", "page.js"), ("polyhead.viz", "draw.js")])
def test_every_text_of_a_script_is_translated(package, name):
    i18n.set_language("zh")
    for catalog in CATALOG.findall(script_catalog(read_asset(name, package))):
        assert not [text for text, translated in json.loads(catalog).items() if text == translated]
