"""Tests of estimate/inputs.py."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.estimate.plan_helpers import RECIPES
from tests.estimate.plan_helpers import home as home

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.workload import BatchShape
from polyhead.estimate import data_sample
from polyhead.estimate.plan import estimate
from polyhead.models import preset_config
from polyhead.run.recipe import load_recipe


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["translation", "masked-lm", "classification"])
def test_of_much_text_a_sample_is_read(home, monkeypatch, name, zipped):
    # many batches, for the last one of a sample is not full; a tokenizer of few lines would know fewer words
    changes = ["train.max_tokens=128", "tokenizer.kind=char"]
    if zipped:
        for path in home.glob("t.*"):
            Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        train = {
            "translation": "[t.en.gz, t.de.gz]",
            "masked-lm": "[t.en.gz]",
            "classification": "[t.tsv.gz]",
        }[name]
        changes += [f"data.train={train}"]
    whole = estimate(load_recipe(f"{name}.yaml", changes), probe=False)
    monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", whole.text["bytes"] // 3)
    monkeypatch.setattr(data_sample, "_MAX_BLOCK_LINES", 10)
    part = estimate(load_recipe(f"{name}.yaml", changes), probe=False)
    assert part.text["lines"] == whole.text["lines"] == 300 + (name == "classification")
    assert part.text["bytes"] == whole.text["bytes"]
    assert part.text["looked_at"] < 0.5 < whole.text["looked_at"] == 1
    assert whole.batches is not None
    assert part.batches == pytest.approx(whole.batches, rel=0.15)
    assert any("extrapolated" in note for note in part.notes)


@pytest.mark.parametrize("name", RECIPES)
def test_text_that_is_not_there_is_no_mistake(home, name):
    for path in [*home.glob("t.*"), *home.glob("v.*")]:
        path.unlink()
    made = estimate(load_recipe(f"{name}.yaml", ["train.epochs=1", "train.max_tokens=160"]), probe=False)
    assert made.batches is None
    assert made.steps is None, "so many epochs of nobody knows how much"
    assert made.operations.run is None
    assert made.largest.rows * made.largest.length == 160
    assert any("not found" in note for note in made.notes)
    assert (
        estimate(load_recipe(f"{name}.yaml", ["train.steps=7", "train.epochs=null"]), probe=False).steps == 7
    )


def test_a_model_alone_learns_from_so_many_tokens():
    made = estimate(
        preset_config("tiny", 50), context_len=8, probe=False, batch_size=2, seq_len=10, train_tokens=100
    )
    assert (made.largest, made.steps) == (BatchShape(2, 10, 10), 5)
    for fields in ({}, {"labels": ("a", "b"), "lm_head": False}):  # few of whose tokens are asked for
        encoder = ModelConfig(kind="encoder", vocab_size=50, d_model=16, n_layers=1, n_heads=2, **fields)
        assert estimate(encoder, probe=False, batch_size=2, seq_len=10, train_tokens=100).steps == 5
    with pytest.raises(UserError, match="more than max_len"):
        estimate(preset_config("tiny", 50), seq_len=2000)
