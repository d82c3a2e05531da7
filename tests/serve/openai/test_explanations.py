"""POST /v1/explain and GET /explain, against the explanation of the run."""

import copy
import json
import re

import pytest
from tests.serve.conftest import get_error, serve_run

from polyhead.explain.document import explain
from polyhead.explain.inputs import read_inputs
from polyhead.explain.levers.table import explain_case
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.run.run_examples import write_examples
from polyhead.serve.auth import ApiKeys

KEY = "sesame-open-0123456789"
PATH, PAIR = "/v1/explain", {"text": "a dog barks .", "target": "ein hund bellt ."}


def test_document_is_that_of_the_run(translator):
    expected = explain(translator.run, *PAIR.values(), has_lever_cases=False)
    answer = translator.ask(PATH, PAIR | {"levr": "scale"})
    assert answer.json() == json.loads(json.dumps(expected)) and "levr" in answer.headers["x-warnings"]
    window = translator.ask(PATH, {**PAIR, "first": 1, "n_shown": 2}).json()
    assert [side["window"] for side in window["sides"]] == [[1, 3], [1, 3]]
    assert translator.ask(PATH, {"text": "a dog"}).json()["inputs"]["target_is"] == "output"


def test_target_of_the_run_has_no_key(runs, tmp_path):
    run = copy.copy(runs["encoder-decoder"])
    run.directory = tmp_path
    write_examples(tmp_path, [("a dog", "ein hund bellt .")])
    for keys, target_is in ((ApiKeys(), "example"), (ApiKeys([KEY]), "output")):
        with serve_run(run, keys=keys) as client:
            headers = {"authorization": f"Bearer {KEY}"}
            inputs = client.ask(PATH, {"text": "a dog"}, headers=headers).json()["inputs"]
            assert inputs["target_is"] == target_is
            assert (inputs["target"] == "ein hund bellt .") == (target_is == "example")
            lever = {"text": "a dog", "lever": "free_running", "setting": {}}
            detail = client.ask(PATH, lever, headers=headers).json()["case"]["detail"]
            (ids,) = run.tokenizer.target_tokenizer.encode(["ein hund bellt ."])
            assert (detail["forced"]["target"][: len(ids)] == ids) == (target_is == "example")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("sampling", {"temperature": 0.5}),
        ("head", {"stack": "decoder", "attention": "cross", "layer": 0, "head": 1}),
        ("cache", {"cache": {"name": "h2o", "budget": 4, "sink": 0}}),
        ("free_running", {}),
    ],
)
def test_lever_is_that_of_the_run(translator, name, setting):
    answer = translator.ask(PATH, {**PAIR, "lever": name, "setting": setting})
    inputs = read_inputs(translator.run, *PAIR.values())
    windows = [(0, len(side.ids)) for side in inputs.sides]
    case = explain_case(translator.run, inputs, windows, name, setting)
    expected = {"object": "explain.lever", "model": translator.service.name, **case}
    assert answer.json() == json.loads(json.dumps(expected))


def read_settings(page):
    (text,) = re.findall(r'<script type="application/json" id="explain-live">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_page_uses_this_service(translator):
    answer = translator.ask("/explain", headers={"accept-language": "zh"})
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-language"] == "zh"
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    settings = read_settings(answer.text)
    assert settings["endpoint"] == "v1/explain"
    assert (settings["has_target"], settings["needs_key"]) == (True, False)
    assert not any(example in answer.text for example in translator.service.card.examples)
    assert translator.ask("/explain", {"text": "a"}).status_code == 405


def test_keys_protect_the_numbers_but_not_the_page(runs):
    with serve_run(runs["classifier"], keys=ApiKeys([KEY])) as client:
        settings = read_settings(client.ask("/explain").text)
        assert settings["needs_key"] and not settings["has_target"]
        assert client.ask(PATH, {"text": "a dog"}).status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        assert client.ask(PATH, {"text": "a dog"}, headers=headers).json()["output"]["kind"] == "classes"
    with serve_run(ensemble_runs([runs["decoder"]] * 2)) as client:
        assert client.ask("/explain").status_code == 404
        assert "ensemble of 2" in get_error(client.ask(PATH, {"text": "a dog"}))["message"]
