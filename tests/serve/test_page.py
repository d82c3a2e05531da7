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
        assert rules["style-src"] == digest(style) and rules["script-src"] == digest(script)


def test_nothing_comes_from_elsewhere(speaker):
    text = speaker.ask("/").text
    assert set(re.findall(r"https?://[^\"'`\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text)
    assert "innerHTML" not in text and "eval(" not in text


def test_the_settings_of_the_page_begin_with_those_of_the_run(services):
    """Each is sent with every request, so one that began elsewhere would change what the run says."""
    for live in services.values():
        (about,) = (one["polyhead"] for one in live.ask("/v1/models").json()["data"])
        if "completions" in about["tasks"] and about["kind"] == "decoder":
            tool = re.search(r"\n  completions: .*?\n  \}\],", live.ask("/").text, re.S).group()
            sent = re.findall(r'"(\w+)"', re.search(r"for \(const name of \[(.*?)\]\) body", tool).group(1))
            begun = dict(re.findall(r'name: "(\w+)".*?value: (.*?)(?:,| \})', tool))
            for name in sent:
                key = {"max_tokens": "max_new_tokens"}.get(name, name)
                assert f"own.{key}" in begun[name], name
                assert about["generation"][key] == getattr(live.run.generation, key)


def test_the_page_asks_only_routes_that_there_are(speaker):
    from polyhead.serve.routes import ROUTES

    asked = set(re.findall(r'ask\("(/[^"]+)"', speaker.ask("/").text))
    assert asked and asked <= {route.path for route in ROUTES}


def test_languages_are_told_where_there_is_a_choice(services):
    """The page offers what is listed, and a model of one pair has none."""
    (about,) = (one["polyhead"] for one in services["encoder-decoder"].ask("/v1/models").json()["data"])
    assert about["languages"] == {"source": [], "target": []}
    assert "model.languages" in services["encoder-decoder"].ask("/").text


def test_a_model_of_one_label_ranks_and_tells_no_share_of_a_class(services):
    """Its numbers are no probabilities, and may be below 0."""
    page = services["classifier"].ask("/").text
    rank, classify = (
        re.search(rf"\n  {tool}: .*?\n  \}}\],", page, re.S).group() for tool in ("rank", "classify")
    )
    assert "[question.value, text]" in rank and "bars(" not in rank and "bars(" in classify
    assert "model.labels.length === 1" in page and "A reranker" in page
