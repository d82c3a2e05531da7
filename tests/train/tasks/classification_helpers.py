"""Shared by the tests of classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import Notes

from polyhead.config.recipe import Recipe
from polyhead.train.run_training import run_training

WORDS = {
    "good": ["fine", "great", "lovely"],
    "bad": ["dull", "awful", "weak"],
    "odd": ["strange", "weird", "queer"],
}

FILLING = ["a", "film", "plot", "with", "some", "actors", "and", "music"]


def recipe(place: Path, out: str, *, task: Any = "classification", **changes: Any) -> Recipe:
    model = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 32,
        "dropout": 0.1,
        "max_len": 32,
        "norm_first": True,
        "pooling": "max",
    }
    train = {
        "steps": 24, "max_tokens": 160, "lr": 1e-2, "precision": "fp32", "seed": 3, "log_every": 1,
        "eval_every": 6,
        "save_every": 5, "schedule": {"name": "cosine", "warmup": 4}, "best_metric": "accuracy",
    }  # fmt: skip
    data = {
        "root": place,
        "train": "train.tsv",
        "valid": "valid.tsv",
        "test": "test.tsv",
        "cache_dir": place / "cache",
    }
    return Recipe.model_validate(
        {
            "task": task,
            "data": data | {"text": "text", "label": "label"} | changes.pop("data", {}),
            "tokenizer": {"vocab_size": 300},
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "out": place / out,
        }
    )  # fmt: skip


def rows(rng: np.random.Generator, count: int) -> list[tuple[str, str, str]]:
    """A text whose class one word tells, and a second text whose class says whether both are alike."""
    out = []
    for _ in range(count):
        labels = [str(rng.choice(list(WORDS))) for _ in range(2)]
        sides = []
        for label in labels:
            words = [*rng.choice(FILLING, int(rng.integers(1, 6))), rng.choice(WORDS[label])]
            sides.append(" ".join(map(str, rng.permutation(words))))
        out.append((labels[0], *sides))
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(1)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        lines = "".join(f"{label}\t{a}\t{b}\n" for label, a, b in rows(rng, count))
        (directory / f"{split}.tsv").write_text("label\ttext\tsecond\n" + lines)
    return directory


@pytest.fixture(scope="module")
def learned(unsynced: None, place: Path) -> tuple[Path, Notes]:
    notes = Notes()
    made = recipe(place, "learned", train={"steps": 150, "eval_every": 50, "save_every": 50, "log_every": 50})
    run_training(made, report=notes)
    return made.out, notes
