"""Shared by the tests of data_sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyhead.config.recipe import Recipe
from polyhead.estimate import data_sample
from polyhead.estimate.plan import estimate

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 256}

TRAIN = {"epochs": 1, "max_tokens": 1024, "precision": "fp32"}

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "fish",
    "sees",
    "eats",
    "likes",
    "hates",
    "red",
    "blue",
    "big",
    "small",
    "now",
    "here",
    "there",
    "very",
    "old",
    "new",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to stand in, where no more than 40 kB are read whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", 40_000)
    return tmp_path


def rows(n: int, least: int = 4, most: int = 9, seed: int = 1) -> list[str]:
    """Lines of so many words."""
    bits = np.random.default_rng(seed)
    return [" ".join(bits.choice(WORDS, bits.integers(least, most))) for _ in range(n)]


def recipe(task: str, train: list[str], valid: list[str], **sections: Any) -> Recipe:
    data = {"train": train, "valid": valid, "max_len": 32} | sections.pop("data", {})
    return Recipe.model_validate(
        {"task": task, "data": data, "tokenizer": {"kind": "char"}, "model": MODEL, "train": TRAIN} | sections
    )


def both(asked: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The plan of a sample, and that of the whole text."""
    part = estimate(asked, probe=False)
    with monkeypatch.context() as patch:
        patch.setattr(data_sample, "_MAX_SPLIT_BYTES", 1 << 30)
        return part, estimate(asked, probe=False)


def check(part: Any, whole: Any) -> None:
    """The sample is one, says so, and gives the plan of the whole."""
    assert part.text["looked_at"] < 0.5 < whole.text["looked_at"] == 1
    assert any("extrapolated" in note for note in part.notes)
    assert part.text["bytes"] == whole.text["bytes"]
    assert part.batches == pytest.approx(whole.batches, rel=0.1)
    assert part.steps == pytest.approx(whole.steps, rel=0.1)
    assert part.labels == pytest.approx(whole.labels, rel=0.1)
