"""POST /v1/explain and GET /explain against the explanation of the run itself."""

from __future__ import annotations

import json
import re

import pytest

from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.explain_levers import explain_case
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve.http.auth import ApiKeys

KEY = "sesame-open-0123456789"
PAIR = {"text": "a dog barks .", "target": "ein hund bellt ."}


def test_the_document_is_that_of_the_run(translator):
    answer = translator.ask("/v1/explain", PAIR)
    assert answer.status_code == 200, answer.text
    expected = explain(translator.run, *PAIR.values(), has_lever_cases=False)
    assert answer.json() == json.loads(json.dumps(expected))
    window = translator.ask("/v1/explain", {**PAIR, "first": 1, "n_shown": 2}).json()
    assert [side["window"] for side in window["sides"]] == [[1, 3], [1, 3]]
    assert translator.ask("/v1/explain", {"text": "a dog"}).json()["inputs"]["target_is"] == "output"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("sampling", {"temperature": 0.5}),
        ("head", {"stack": "decoder", "attention": "cross", "layer": 0, "head": 1}),
        ("cache", {"cache": {"name": "h2o", "budget": 4, "sink": 0}}),
        ("free_running", {}),
    ],
)
def test_a_lever_is_that_of_the_run(translator, name: str, setting: dict):
    answer = translator.ask("/v1/explain", {**PAIR, "lever": name, "setting": setting})
    assert answer.status_code == 200, answer.text
    inputs = read_inputs(translator.run, *PAIR.values())
    case = explain_case(translator.run, inputs, (0, len(inputs.sides[1].ids)), name, setting)
    expected = {"object": "explain.lever", "model": translator.service.name, **case}
    assert answer.json() == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"text": None}, "text", "text"),
        ({"text": ["a"]}, "text", "text"),
        ({"text": " "}, "text", "text is empty: expected text"),
        ({"first": -1}, "first", "first"),
        ({"n_shown": 65}, "n_shown", "n_shown"),
        ({"lever": "knob"}, None, "unknown lever 'knob'"),
        ({"lever": "scale", "setting": {"scale": "x"}}, None, "scale of lever 'scale' must be a number"),
        ({"lever": "scale", "setting": {"scle": 1}}, None, "unknown field of lever 'scale' 'scle'"),
        ({"lever": "kv_heads", "setting": {"n_kv_heads": 2}}, None, "n_kv_heads of lever 'kv_heads'"),
        ({"lever": "cache", "setting": {"cache": {"name": "os:system"}}}, None, "unknown cache"),
        ({"setting": {"scale": 1}}, "setting", "setting: requires a lever"),
        ({"model": "other"}, "model", "unknown model"),
        ({"text": "a dog " * 99}, None, "the model's maximum is 47"),
        ({"text": "a" * 40_000}, "text", "the maximum is 32768"),
    ],
)
def test_a_wrong_request_is_one_message(translator, fields: dict, param: str | None, message: str):
    answer = translator.ask("/v1/explain", {**PAIR, **fields})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == param


def test_unknown_fields_are_reported(translator):
    answer = translator.ask("/v1/explain", {**PAIR, "levr": "scale"})
    assert "levr" in answer.headers["x-warnings"]


def read_live(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="explain-live">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_asks_this_service(translator):
    answer = translator.ask("/explain", headers={"accept-language": "zh"})
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-language"] == "zh"
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    settings = read_live(answer.text)
    assert settings["endpoint"] == "v1/explain"
    assert (settings["has_target"], settings["needs_key"]) == (True, False)
    asked = translator.ask("/v1/explain", {"text": settings["text"] or "a dog"})
    assert asked.status_code == 200, asked.text
    assert translator.ask("/explain", {"text": "a"}).status_code == 405


def test_keys_protect_the_numbers_not_the_page(serving, maker):
    with serving(maker("classifier"), keys=ApiKeys([KEY])) as service:
        page = service.ask("/explain")
        assert read_live(page.text)["needs_key"]
        assert not read_live(page.text)["has_target"]
        assert service.ask("/v1/explain", {"text": "a dog"}).status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        document = service.ask("/v1/explain", {"text": "a dog"}, headers=headers).json()
        assert document["output"]["kind"] == "classes"


def test_an_ensemble_has_no_page(serving, maker):
    with serving(ensemble_runs([maker("decoder"), maker("decoder")])) as service:
        assert service.ask("/explain").status_code == 404
        answer = service.ask("/v1/explain", {"text": "a dog"})
        assert answer.status_code == 400
        assert "ensemble of 2" in answer.json()["error"]["message"]
