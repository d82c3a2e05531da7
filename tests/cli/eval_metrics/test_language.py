"""Tests of cli/eval_metrics/language.py."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from polyhead import Choice, ModelConfig, build, load
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.data.readers.plain_text import open_text
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks 0123456789", "two dogs , one cat"]


@pytest.fixture(scope="module", params=["recipe", "no recipe"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tables")
    (where / "plain").write_text("".join(f"{text}\n" for text in TEXTS))
    rows = [{"text": text, "other": text[::-1], "number": 5} for text in TEXTS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), where / "a.parquet")
    (where / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (where / "a.tsv").write_text(
        "".join("\t".join(map(str, row)) + "\n" for row in ([*rows[0]], *(row.values() for row in rows)))
    )
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 64}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3).eval()
    data = {"train": ["plain"], "valid": ["plain"], "max_len": 64}
    recipe = Recipe.model_validate(
        {"task": "language-model", "data": data, "model": sizes, "train": {"steps": 1}}
    )
    Run(model, tokenizer, GenerationConfig(), recipe if request.param == "recipe" else None).save(
        where / "run"
    )
    return where


def figures(capsys: pytest.CaptureFixture[str], *typed: str | Path) -> list[float]:
    assert main(["eval", *map(str, typed)]) == 0
    return [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()[:4]]


@pytest.mark.parametrize("table", ["a.parquet", "a.jsonl", "a.tsv"])
def test_of_a_table_its_texts_are_measured(
    table: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = load(home / "run").measure_perplexity(open_text([home / "plain"], "line"))
    wanted = [measured.loss, measured.per_token, measured.per_word, measured.bits_per_character]
    found = figures(capsys, home / "run", home / table)
    assert found == pytest.approx(wanted, abs=2e-3)
    other = figures(capsys, home / "run", home / table, "--text", "other")
    assert other != pytest.approx(wanted, abs=2e-3)


def test_a_column_is_of_files_that_are_given(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(home / "run"), "--text", "other"]) == 2
    assert "--text requires files" in capsys.readouterr().err
    assert main(["eval", str(home / "run"), str(home / "a.jsonl"), "--text", "txt"]) == 2
    assert "unknown key of a.jsonl 'txt'; did you mean 'text'?" in capsys.readouterr().err
