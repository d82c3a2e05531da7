"""Tests of serve/http/page.py: the page loads nothing from elsewhere, and only its own script runs in it."""

import base64
import hashlib
import re

from polyhead.core.i18n import load_catalog
from polyhead.serve.http.page import render_page
from polyhead.serve.openai.routes import ROUTES
from polyhead.viz.html_page import script_texts


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_policy_allows_only_style_and_script_of_page(clients):
    for client in clients.values():
        answer = client.ask("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"].split(";")
        rules = dict(rule.strip().split(" ", 1) for rule in policy)
        (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.S)
        (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.S)
        assert not re.findall(r"<script(?! type=\"application/json\")[^>]+>", answer.text)
        assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
        assert rules["connect-src"] == "'self'"
        assert rules["style-src"] == digest(style) and rules["script-src"] == digest(script)


def test_page_is_self_contained_and_translated(client, translator):
    text = client.ask("/").text
    assert set(re.findall(r"https?://[^\"'`\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text)
    assert "innerHTML" not in text and "eval(" not in text
    paths = set(re.findall(r'ask\("(/[^"]+)"', text))
    assert paths and paths <= {route.path for route in ROUTES}
    texts = script_texts(render_page("en").decode().rpartition("<script>")[2])
    assert len(texts) > 100 and set(texts) <= set(load_catalog("zh"))
    (model,) = translator.ask("/v1/models").json()["data"]
    assert model["polyhead"]["languages"] == {"source": [], "target": []}
    assert model["polyhead"]["settled"] == {"source": "", "target": ""}
