import json
import re
from importlib.resources import files

from polyhead.core.i18n import load_catalog
from polyhead.explain import walk_page
from polyhead.viz.html_page import csp_hash, script_texts

DOCUMENT = {"run": {"name": "a<b"}, "inputs": {"text": "</script><b>"}}
VENDOR = files("polyhead.explain") / "page" / "vendor"
MAX_LIBRARY = 150_000  # bytes


def read_data(html, element):
    match = re.search(f'<script type="application/json" id="{element}">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_page_embeds_data_without_requests():
    html = walk_page.render_walk_page(DOCUMENT, language="zh", chapters={"en": [{"title": "T"}]})
    assert read_data(html, "explain-data") == DOCUMENT
    assert read_data(html, "explain-chapters") == {"en": [{"title": "T"}]}
    assert '<html lang="zh-CN">' in html and "<title>a&lt;b" in html
    assert re.findall(r"<(?:link|script|img|iframe)[^>]*\s(?:src|href)=\"(?!data:)", html) == []
    assert "connect-src" not in html and 'id="explain-live"' not in html


def test_policy_allows_own_script_and_live_connection():
    live = {"endpoint": "v1/explain", "text": "a dog", "target": None}
    html = walk_page.render_walk_page(None, live=live)
    assert read_data(html, "explain-live") == live
    assert 'id="explain-data"' not in html
    assert walk_page.walk_page_policy(is_live=True).endswith("; connect-src 'self'")
    assert walk_page.walk_page_policy(is_live=True) in html
    html, policy = walk_page.render_walk_page(DOCUMENT), walk_page.walk_page_policy(is_live=False)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert csp_hash(script) in policy and csp_hash(style) in policy
    assert script == walk_page.load_walk_script()


def test_every_text_is_literal_with_chinese_translation():
    script = walk_page.load_walk_script()
    texts = set(script_texts(script))
    assert texts == set(walk_page.chinese_texts(script)) >= set(load_catalog("zh", "explain_page"))
    assert read_data(walk_page.render_walk_page(DOCUMENT), "catalog") == walk_page.chinese_texts(script)
    for text, chinese in walk_page.chinese_texts(script).items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese)), text
    own_scripts = [name for name in walk_page.PAGE_SCRIPTS if "vendor" not in name]
    code = "\n".join((files("polyhead.explain") / name).read_text() for name in own_scripts)
    assert re.findall(r"(?<![\w.])t\((?!\")[^)]*\)", code.replace("const t = (text", "")) == []


def test_library_has_all_functions_of_the_page():
    """It is a part of d3: what it lacks fails where a pointer gets to it, in no test of keys."""
    used = set(re.findall(r"\bd3\.(\w+)", walk_page.load_walk_script()))
    assert used and used <= set(re.findall(r"(\w+):\(\)=>", (VENDOR / "d3.min.js").read_text()))


def test_library_is_small_with_license():
    code = (VENDOR / "d3.min.js").read_text()
    assert len(code.encode()) < MAX_LIBRARY and "</script" not in code
    assert "Mike Bostock" in (VENDOR / "LICENSE-d3.txt").read_text()
