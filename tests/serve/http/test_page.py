"""The page needs nothing from elsewhere, and nothing but its own script can run in it."""

from __future__ import annotations

import base64
import hashlib
import re


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_names_the_one_style_and_the_one_script(services):
    for live in services.values():
        answer = live.ask("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        rules = dict(
            rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";")
        )
        assert (
            rules["default-src"] == "'none'"
            and rules["connect-src"] == "'self'"
            and rules["frame-ancestors"] == "'none'"
        )
        (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.S)
        (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.S)
        assert not re.findall(r"<script(?! type=\"application/json\")[^>]+>", answer.text)
        assert rules["style-src"] == digest(style) and rules["script-src"] == digest(script)


def test_nothing_comes_from_elsewhere(speaker):
    text = speaker.ask("/").text
    assert set(re.findall(r"https?://[^\"'`\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text)
    assert "innerHTML" not in text and "eval(" not in text


def test_the_page_asks_only_routes_that_there_are(speaker):
    from polyhead.serve.http.routes import ROUTES

    asked = set(re.findall(r'ask\("(/[^"]+)"', speaker.ask("/").text))
    assert asked and asked <= {route.path for route in ROUTES}


def test_every_text_of_the_page_has_a_translation():
    from polyhead.core.i18n import load_catalog
    from polyhead.serve.http.page import render_page
    from polyhead.viz.html_page import script_texts

    script = render_page("en").decode().rpartition("<script>")[2]
    texts = script_texts(script)
    assert len(texts) > 100 and set(texts) <= set(load_catalog("zh"))


def test_models_of_one_pair_of_languages_offer_no_choice(services):
    (about,) = (one["polyhead"] for one in services["encoder-decoder"].ask("/v1/models").json()["data"])
    assert about["languages"] == {"source": [], "target": []}
    assert about["settled"] == {"source": "", "target": ""}
