import json
import re

import pytest

from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language, load_catalog, tr, use_language
from polyhead.viz.html_page import (
    PageSection,
    find_run_links,
    in_both_languages,
    link_run_pages,
    pair_texts,
    read_asset,
    render_html,
    save_page,
    script_catalog,
    script_texts,
)


def read_catalogs(html):
    pattern = r'<script type="application/json" id="catalog">(.*?)</script>'
    return [json.loads(text) for text in re.findall(pattern, html, re.DOTALL)]


def test_page_has_language_and_catalog_of_script():
    script = 't("layer {n}", { n: 2 }); t( "mean" ); t("untranslated"); put("reading"); t(name)'
    assert read_catalogs(script_catalog('t("mean"); make("Layer")')) == [{"mean": "平均"}]
    for language in ("en", "zh"):
        with use_language(language):
            html = render_html("Title", "", [], script=script)
        (catalog,) = read_catalogs(html)
        assert f'<html lang="{language}">' in html
        assert (catalog["layer {n}"], catalog["mean"]) == ("第 {n} 层", "平均")
        assert "untranslated" not in catalog
        assert html.index('id="catalog"') < html.index("const CATALOG")


@pytest.mark.parametrize("name", ["site.js", "page.js", "draw.js", "report.js"])
def test_every_text_of_script_is_translated(name):
    assert not set(script_texts(read_asset(name))) - load_catalog("zh").keys()


def test_texts_of_both_languages_are_paired():
    """A name in the data stays as it is where it equals a word of the page."""

    @in_both_languages
    def render(name):
        source, style = tr("Source"), "<style>Loss</style>"
        body = f'<p title="{source}">{name}</p><i>\n{source}</i><b>{tr("Loss")}</b>{style}'
        return render_html(tr("Loss"), lambda: tr("Result"), [PageSection("x", "", body)])

    page = render("Source")
    (text,) = re.findall(r'id="texts">(.*?)</script>', page)
    texts = {"Loss": "损失", "Result": "结果", "Source": ["原文", "Source", "原文"]}
    assert json.loads(text) == texts and get_language() == "en"
    with use_language("zh"):
        chinese = render("原文")  # in all languages
    (text,) = re.findall(r'id="texts">(.*?)</script>', chinese)
    assert json.loads(text) == {"损失": "Loss", "结果": "Result", "原文": ["Source", "原文", "Source"]}
    assert pair_texts("<p>one</p>", "<p>one</p><p>two</p>") == {}


def test_pages_of_a_run_link_to_each_other(tmp_path):
    def read_pages(name):
        (text,) = re.findall(r'id="links">(.*?)</script>', (tmp_path / name).read_text())
        return json.loads(text)

    for name, command in (("report.html", "polyhead explain <x>"), ("attention.html", "")):
        links = find_run_links(tmp_path, command=command)
        save_page(tmp_path / name, render_html(name, "", [], links=links))
    assert read_pages("report.html") == {"pages": {}, "command": "polyhead explain <x>"}
    (tmp_path / "explain.html").write_text("of another version")
    link_run_pages(tmp_path)
    names = ("report.html", "explain.html", "attention.html")
    for name, command in (("report.html", "polyhead explain <x>"), ("attention.html", "")):
        assert read_pages(name) == {"pages": {name: name for name in names}, "command": command}
    assert (tmp_path / "explain.html").read_text() == "of another version"
    for damage in ("{", "[]", '{"pages":{}}'):
        page = f'<script type="application/json" id="links">{damage}</script>'
        (tmp_path / "draw.html").write_text(page)
        link_run_pages(tmp_path)
        assert (tmp_path / "draw.html").read_text() == page
    assert find_run_links(tmp_path, "a b/")["pages"]["report.html"] == "a%20b/report.html"


def test_directory_in_place_of_page_is_an_error(tmp_path):
    (tmp_path / "pages").mkdir()
    with pytest.raises(UserError, match="pages is a directory; expected a file in it"):
        save_page(tmp_path / "pages", "<p>")
    assert list(tmp_path.rglob("*")) == [tmp_path / "pages"]
