"""The page of ``explain`` as a file: self-contained, in two languages, with a recorded library."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

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

DOCUMENT: dict[str, Any] = {"run": {"name": "a<b"}, "inputs": {"text": "</script><b>"}}
VENDOR = files("polyhead.explain") / "page" / "vendor"
MAX_LIBRARY = 150_000  # bytes


def read_data(html: str, element: str) -> Any:
    """The JSON in an element of the page."""
    found = re.search(f'<script type="application/json" id="{element}">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_has_its_data_and_asks_for_nothing() -> None:
    html = render_walk_page(DOCUMENT, language="zh", chapters={"en": [{"title": "T"}]})
    assert read_data(html, "explain-data") == DOCUMENT
    assert read_data(html, "explain-chapters") == {"en": [{"title": "T"}]}
    assert '<html lang="zh-CN">' in html and "<title>a&lt;b" in html
    assert re.findall(r"<(?:link|script|img|iframe)[^>]*\s(?:src|href)=\"(?!data:)", html) == []
    assert "connect-src" not in html and 'id="explain-live"' not in html


def test_only_a_live_page_may_ask_its_service() -> None:
    live = {"endpoint": "v1/explain", "text": "a dog", "target": None}
    html = render_walk_page(None, live=live)
    assert read_data(html, "explain-live") == live
    assert 'id="explain-data"' not in html
    assert walk_page_policy(is_live=True).endswith("; connect-src 'self'")
    assert walk_page_policy(is_live=True) in html


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone() -> None:
    html, policy = render_walk_page(DOCUMENT), walk_page_policy(is_live=False)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert csp_hash(script) in policy and csp_hash(style) in policy
    assert script == load_walk_script()


def test_every_text_of_the_page_has_its_chinese() -> None:
    script = load_walk_script()
    assert set(script_texts(script)) == set(chinese_texts(script))
    assert read_data(render_walk_page(DOCUMENT), "catalog") == chinese_texts(script)
    for text, chinese in chinese_texts(script).items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese)), text


def test_every_text_is_a_literal() -> None:
    ours = "\n".join(
        (files("polyhead.explain") / name).read_text() for name in PAGE_SCRIPTS if "vendor" not in name
    )
    assert re.findall(r"(?<![\w.])t\((?!\")[^)]*\)", ours.replace("const t = (text", "")) == []


def test_the_catalog_of_the_page_has_no_text_that_the_page_lacks() -> None:
    assert set(load_catalog("zh", "explain_page")) <= set(script_texts(load_walk_script()))


def test_the_library_is_small_and_its_versions_and_licence_are_recorded() -> None:
    code = (VENDOR / "d3.min.js").read_text()
    assert len(code.encode()) < MAX_LIBRARY
    assert "</script" not in code
    package = json.loads((VENDOR / "package.json").read_text())
    readme = (VENDOR / "README.md").read_text()
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        assert f"| {name} | {version} |" in readme
    assert "Mike Bostock" in (VENDOR / "LICENSE-d3.txt").read_text()


@pytest.mark.parametrize("name", [name for name in PAGE_SCRIPTS if "vendor" not in name])
def test_a_script_is_of_one_subject_and_of_a_readable_size(name: str) -> None:
    text = (files("polyhead.explain") / name).read_text()
    assert len(text.splitlines()) <= 500
    assert text.removeprefix('"use strict";\n').startswith(("/*", "//"))
