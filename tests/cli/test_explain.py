"""Tests of cli/explain.py: one page for a run of any kind; `mistakes.txt` has its messages."""

import base64
import json
import re
import zlib
from html import unescape

import pytest
from tests.cli.cli_helpers import save_run

import polyhead
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.explain.document import explain
from polyhead.run.run_examples import write_examples

SOURCE, TARGET = "ein hund bellt .", "a dog barks ."


def read_data(page):
    pattern = r'<script type="application/json" id="explain-data">(.*?)</script>'
    (text,) = re.findall(pattern, page.read_text())
    data = json.loads(text)
    packed = data.pop("packed").translate(str.maketrans(".,:", "<>&"))
    return data | json.loads(zlib.decompress(base64.b85decode(packed)))


def test_page_has_the_explanation(tiny, tmp_path, cli):
    page = tmp_path / "new" / "page.html"
    out = cli("explain", tiny, SOURCE, TARGET, "--out", page).out
    expected = json.loads(json.dumps(explain(polyhead.load(tiny, device="cpu"), SOURCE, TARGET)))
    data = read_data(page)
    assert {key: data[key] for key in expected} == expected
    assert out == f"{len(expected['walk'])} steps in 2 layers: {page}\n"
    cli("explain", tiny, SOURCE, "--tokens", 3, "--first", 2)
    data = read_data(tiny / "explain.html")
    assert data["inputs"]["target_is"] == "output"
    assert data["sides"][0]["window"] == [1, 4]
    (tiny / "explain.html").unlink()


@pytest.mark.parametrize(
    ("kind", "target"), [("encoder-decoder", TARGET), ("classifier", TARGET), ("encoder", None)]
)
def test_validation_text_is_the_default(kind, target, tmp_path, cli):
    fields = {"kind": "encoder", "labels": ("n", "y")} if kind == "classifier" else {"kind": kind}
    save_run(tmp_path, [SOURCE, TARGET], max_len=40, **fields)
    assert "keeps no validation text" in cli("explain", tmp_path, code=2).err
    write_examples(tmp_path, [row[: 1 + bool(target)] for row in (("hund", "dog"), (SOURCE, TARGET))])
    cli("explain", tmp_path)
    inputs = read_data(tmp_path / "explain.html")["inputs"]
    target_is = {"encoder-decoder": "example", "classifier": "text", "encoder": None}[kind]
    assert inputs == {"text": SOURCE, "target": target, "target_is": target_is}


@pytest.mark.parametrize("kind", ["decoder", "encoder", "classifier"])
def test_every_kind_of_model(kind, tmp_path, cli):
    fields = {"kind": "encoder", "labels": ("n", "y")} if kind == "classifier" else {"kind": kind}
    save_run(tmp_path, [SOURCE, TARGET], max_len=40, **fields)
    cli("explain", tmp_path, SOURCE, *([TARGET] if kind == "classifier" else []))
    assert read_data(tmp_path / "explain.html")["run"]["kind"] == kind


def test_other_text_is_compared(tiny, tmp_path, cli):
    page = tmp_path / "page.html"
    cli("explain", tiny, SOURCE, TARGET, "--other", "a hund bellt .", "--output", page)
    patching = read_data(page)["patching"]
    assert patching["text"] == "a hund bellt ."
    assert [one["side"] for one in patching["maps"]] == [0, 1]
    error = cli("explain", tiny, SOURCE, TARGET, "--other", "hund", "--output", page, code=2).err
    assert "must have as many tokens as each other" in error and error.count("\n") == 1


@pytest.mark.slow
def test_page_of_a_base_model_is_small(tmp_path, cli):
    """Twenty tokens, six layers on each side, d_model 512; random weights do not compress."""
    sizes = {"d_model": 512, "n_heads": 8, "n_layers": 6}
    run = save_run(tmp_path, [SOURCE, TARGET], generation=GenerationConfig(beam_size=1), **sizes)
    text = SOURCE
    while len(run.tokenizer.encode([text])[0]) < 19:
        text += f" {SOURCE}"
    cli("explain", tmp_path, text, text)
    for first, stop in (side["window"] for side in read_data(tmp_path / "explain.html")["sides"]):
        assert stop - first >= 20
    assert (tmp_path / "explain.html").stat().st_size < 5_000_000


def test_ensemble_and_packed_model_are_refused(tiny):
    with pytest.raises(UserError, match="single run only, and this is an ensemble of 2"):
        explain(polyhead.load([tiny, tiny]), SOURCE)
    with pytest.raises(UserError, match="packed weights cannot be explained"):
        explain(polyhead.load(tiny, fast=True, device="cpu"), SOURCE)


def test_two_runs_are_on_one_page(tiny, tmp_path, cli):
    for name in ("a", "b"):
        save_run(tmp_path / name, [SOURCE, TARGET], max_len=40, seed=ord(name), kind="decoder")
    out = cli("explain", tmp_path / "a", tmp_path / "b", SOURCE).out
    page = tmp_path / "a" / "explain-two.html"
    assert out.count(str(page)) == 2
    pages = [unescape(text) for text in re.findall(r'srcdoc="([^"]*)"', page.read_text())]
    (first, second), pattern = pages, r'id="explain-data">(.*?)</script>'
    documents = [json.loads(re.findall(pattern, text)[0]) for text in (first, second)]
    assert [one["run"]["name"] for one in documents] == ["a", "b"]
    assert [one["inputs"]["text"] for one in documents] == [SOURCE, SOURCE]
    assert documents[0]["data"] != documents[1]["data"]
    assert "unexpected argument 'c'" in cli.error("explain", tiny, SOURCE, TARGET, "c")
