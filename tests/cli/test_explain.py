"""The verb writes one page with the explanation of a text, of a run of any kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import polyhead
from polyhead import ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.explain.document import explain
from polyhead.run.run import Run

SOURCE, TARGET = "ein hund bellt .", "a dog barks ."
MAX_PAGE = 5_000_000  # bytes


def embedded(page: Path) -> dict[str, Any]:
    """The data of a page."""
    pattern = r'<script type="application/json" id="explain-data">(.*?)</script>'
    (text,) = re.findall(pattern, page.read_text())
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_page_holds_the_explanation_of_the_pair(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert main(["explain", str(tiny), SOURCE, TARGET, "--out", str(page)]) == 0
    expected = json.loads(json.dumps(explain(polyhead.load(tiny, device="cpu"), SOURCE, TARGET)))
    shown = embedded(page)
    assert {key: shown[key] for key in expected} == expected
    n = len(expected["walk"])
    assert capsys.readouterr().out == f"{n} steps in 2 layers: {page}\n"


def test_without_a_target_the_own_output_is_walked_and_the_page_is_in_the_run(tiny: Path) -> None:
    assert main(["explain", str(tiny), SOURCE, "--tokens", "3", "--first", "2"]) == 0
    shown = embedded(tiny / "explain.html")
    assert shown["inputs"]["target_is"] == "output"
    assert shown["sides"][0]["window"] == [1, 4]
    (tiny / "explain.html").unlink()


@pytest.mark.parametrize("kind", ["decoder", "encoder", "classifier"])
def test_models_of_every_kind(kind: str, tiny: Path, tmp_path: Path) -> None:
    tokenizer = polyhead.load(tiny).tokenizer
    config = ModelConfig(
        kind="encoder" if kind == "classifier" else kind,
        labels=("n", "y") if kind == "classifier" else (),
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        n_heads=2,
        n_layers=1,
        max_len=40,
    )
    Run(build(config, seed=0), tokenizer, GenerationConfig()).save(tmp_path)
    texts = [SOURCE, TARGET] if kind == "classifier" else [SOURCE]
    assert main(["explain", str(tmp_path), *texts]) == 0
    assert embedded(tmp_path / "explain.html")["run"]["kind"] == kind


def test_the_page_of_a_base_model_and_twenty_tokens_is_small(tiny: Path, tmp_path: Path) -> None:
    """Six layers on each side, d_model 512; the weights are random, which no compression makes smaller."""
    tokenizer = polyhead.load(tiny).tokenizer
    config = ModelConfig.model_validate({"vocab_size": tokenizer.vocab_size, "preset": "base"})
    run = Run(build(config, seed=0), tokenizer, GenerationConfig(beam_size=1))
    run.save(tmp_path)
    text, source_len = "", 0
    while source_len < 19:
        text += "ein hund bellt . "
        source_len = len(tokenizer.encode([text])[0])
    assert main(["explain", str(tmp_path), text, text]) == 0
    page = tmp_path / "explain.html"
    windows = [side["window"] for side in embedded(page)["sides"]]
    assert [stop - first for first, stop in windows] == [source_len + 1] * 2 != [0, 0]
    assert page.stat().st_size < MAX_PAGE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  "], "TEXT is empty: expected text"),
        ([SOURCE, ""], "TARGET is empty: expected text"),
        ([SOURCE * 40], "the text has [0-9]+ tokens; the model's maximum is 31"),
        ([SOURCE, TARGET * 40], "the target has [0-9]+ tokens; the model's maximum is 31"),
        ([SOURCE, "--out", "."], "--out . is a directory"),
        ([SOURCE, "--tokens", "0"], "--tokens"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tiny), *arguments]) == 2
    err = capsys.readouterr().err
    assert re.match(f"polyhead: {message}", err)
    assert err.count("\n") == 1
    assert not (tiny / "explain.html").exists()


def test_an_ensemble_and_a_packed_model_are_refused(tiny: Path) -> None:
    with pytest.raises(UserError, match="single run only, and this is an ensemble of 2"):
        explain(polyhead.load([tiny, tiny]), SOURCE)
    packed = polyhead.load(tiny, fast=True, device="cpu")
    with pytest.raises(UserError, match="packed weights cannot be explained"):
        explain(packed, SOURCE)


def test_the_messages_are_chinese(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", str(tiny), SOURCE, TARGET, "--out", str(page), "--lang", "zh"]) == 0
    assert re.fullmatch(r"2 层共 [0-9]+ 步：.*\n", capsys.readouterr().out)
    assert embedded(page)["lang"] == "zh"
    assert '<html lang="zh-CN">' in page.read_text()
    assert main(["explain", str(tiny), "", "--lang", "zh"]) == 2
    assert capsys.readouterr().err == "polyhead: TEXT 是空的：请给出文本\n"
