"""The page of ``explain`` as a file: self-contained, in two languages, with a bundled library."""

import json
import re
from importlib.resources import files

import pytest

from polyhead.core.i18n import load_catalog
from polyhead.explain.walk_page import (
    PAGE_SCRIPTS,
    chinese_texts,
    load_walk_script,
    render_walk_page,
    walk_page_policy,
)
from polyhead.viz.html_page import csp_hash, script_texts

DOCUMENT = {"run": {"name": "a<b"}, "inputs": {"text": "</script><b>"}}
VENDOR = files("polyhead.explain") / "page" / "vendor"
MAX_LIBRARY = 150_000  # bytes


def read_data(html, element):
    """The JSON in an element of the page."""
    match = re.search(f'<script type="application/json" id="{element}">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_page_embeds_data_without_requests():
    html = render_walk_page(DOCUMENT, language="zh", chapters={"en": [{"title": "T"}]})
    assert read_data(html, "explain-data") == DOCUMENT
    assert read_data(html, "explain-chapters") == {"en": [{"title": "T"}]}
    assert '<html lang="zh-CN">' in html and "<title>a&lt;b" in html
    assert re.findall(r"<(?:link|script|img|iframe)[^>]*\s(?:src|href)=\"(?!data:)", html) == []
    assert "connect-src" not in html and 'id="explain-live"' not in html


def test_only_live_page_may_connect():
    live = {"endpoint": "v1/explain", "text": "a dog", "target": None}
    html = render_walk_page(None, live=live)
    assert read_data(html, "explain-live") == live
    assert 'id="explain-data"' not in html
    assert walk_page_policy(is_live=True).endswith("; connect-src 'self'")
    assert walk_page_policy(is_live=True) in html


def test_policy_allows_only_own_script_and_style():
    html, policy = render_walk_page(DOCUMENT), walk_page_policy(is_live=False)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert csp_hash(script) in policy and csp_hash(style) in policy
    assert script == load_walk_script()


def test_every_text_has_chinese_translation():
    script = load_walk_script()
    texts = set(script_texts(script))
    assert texts == set(chinese_texts(script)) >= set(load_catalog("zh", "explain_page"))
    assert read_data(render_walk_page(DOCUMENT), "catalog") == chinese_texts(script)
    for text, chinese in chinese_texts(script).items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese)), text


def test_every_text_is_literal():
    own_scripts = "\n".join(
        (files("polyhead.explain") / name).read_text() for name in PAGE_SCRIPTS if "vendor" not in name
    )
    assert re.findall(r"(?<![\w.])t\((?!\")[^)]*\)", own_scripts.replace("const t = (text", "")) == []


def test_library_is_small_with_versions_and_license():
    code = (VENDOR / "d3.min.js").read_text()
    assert len(code.encode()) < MAX_LIBRARY
    assert "</script" not in code
    package = json.loads((VENDOR / "package.json").read_text())
    readme = (VENDOR / "README.md").read_text()
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        assert f"| {name} | {version} |" in readme
    assert "Mike Bostock" in (VENDOR / "LICENSE-d3.txt").read_text()


@pytest.mark.parametrize("name", [name for name in PAGE_SCRIPTS if "vendor" not in name])
def test_script_has_header_and_readable_size(name):
    text = (files("polyhead.explain") / name).read_text()
    assert len(text.splitlines()) <= 500
    assert text.removeprefix('"use strict";\n').startswith(("/*", "//"))
