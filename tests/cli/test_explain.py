"""Tests of cli/explain.py: one page for a run of any kind; `mistakes.txt` has its messages."""

import json
import re

import pytest

import polyhead
from polyhead import ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.explain.document import explain
from polyhead.run.run import Run

SOURCE, TARGET = "ein hund bellt .", "a dog barks ."
MAX_PAGE_BYTES = 5_000_000


def read_data(page):
    pattern = r'<script type="application/json" id="explain-data">(.*?)</script>'
    (text,) = re.findall(pattern, page.read_text())
    return json.loads(text)


def test_page_has_the_explanation(tiny, tmp_path, cli):
    page = tmp_path / "new" / "page.html"
    out = cli("explain", tiny, SOURCE, TARGET, "--out", page).out
    expected = json.loads(json.dumps(explain(polyhead.load(tiny, device="cpu"), SOURCE, TARGET)))
    data = read_data(page)
    assert {key: data[key] for key in expected} == expected
    assert out == f"{len(expected['walk'])} steps in 2 layers: {page}\n"


def test_target_defaults_to_the_output(tiny, cli):
    cli("explain", tiny, SOURCE, "--tokens", 3, "--first", 2)
    data = read_data(tiny / "explain.html")
    assert data["inputs"]["target_is"] == "output"
    assert data["sides"][0]["window"] == [1, 4]
    (tiny / "explain.html").unlink()


@pytest.mark.parametrize("kind", ["decoder", "encoder", "classifier"])
def test_every_kind_of_model(kind, tiny, tmp_path, cli):
    tokenizer = polyhead.load(tiny).tokenizer
    fields = {"kind": "encoder", "labels": ("n", "y")} if kind == "classifier" else {"kind": kind}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 40}
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **fields, **sizes), seed=0)
    Run(model, tokenizer, GenerationConfig()).save(tmp_path)
    cli("explain", tmp_path, SOURCE, *([TARGET] if kind == "classifier" else []))
    assert read_data(tmp_path / "explain.html")["run"]["kind"] == kind


@pytest.mark.slow
def test_page_of_a_base_model_is_small(tiny, tmp_path, cli):
    """Twenty tokens, six layers on each side, d_model 512; random weights do not compress."""
    tokenizer = polyhead.load(tiny).tokenizer
    config = ModelConfig.model_validate({"vocab_size": tokenizer.vocab_size, "preset": "base"})
    Run(build(config, seed=0), tokenizer, GenerationConfig(beam_size=1)).save(tmp_path)
    text, source_len = "", 0
    while source_len < 19:
        text += "ein hund bellt . "
        source_len = len(tokenizer.encode([text])[0])
    cli("explain", tmp_path, text, text)
    page = tmp_path / "explain.html"
    windows = [side["window"] for side in read_data(page)["sides"]]
    assert [stop - first for first, stop in windows] == [source_len + 1] * 2 != [0, 0]
    assert page.stat().st_size < MAX_PAGE_BYTES


def test_ensemble_and_packed_model_are_refused(tiny):
    with pytest.raises(UserError, match="single run only, and this is an ensemble of 2"):
        explain(polyhead.load([tiny, tiny]), SOURCE)
    with pytest.raises(UserError, match="packed weights cannot be explained"):
        explain(polyhead.load(tiny, fast=True, device="cpu"), SOURCE)


def test_messages_and_page_in_chinese(tiny, tmp_path, cli):
    page = tmp_path / "page.html"
    out = cli("explain", tiny, SOURCE, TARGET, "--out", page, "--lang", "zh").out
    assert re.fullmatch(r"2 层共 [0-9]+ 步：.*\n", out)
    assert read_data(page)["lang"] == "zh" and '<html lang="zh-CN">' in page.read_text()
    assert cli.error("explain", tiny, "", "--lang", "zh") == "TEXT 是空的：请给出文本"
