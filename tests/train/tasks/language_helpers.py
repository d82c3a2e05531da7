"""Shared by the tests of language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import Notes

from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.train.run_training import run_training

NAMES = ["anna", "bert", "carl", "dora"]

STEPS = 30


def recipe(place: Path, out: str, *, documents: str = "line", steps: int = STEPS, **changes: Any) -> Recipe:
    model = {
        "d_model": 24,
        "n_layers": 1,
        "n_heads": 2,
        "d_ff": 48,
        "dropout": 0.1,
        "max_len": 32,
        "norm_first": True,
    }
    train = {
        "steps": steps, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "ema": 0.9, "seed": 3,
        "log_every": 1,
        "eval_every": 10, "save_every": 7, "schedule": {"name": "cosine", "warmup": 5},
    }  # fmt: skip
    return Recipe.model_validate(
        {
            "task": changes.pop("task", "language-model"),
            "data": {"root": place, "train": "names.txt", "valid_fraction": 0.1,
                "document_separator": documents, "max_len": 16,
                     "cache_dir": place / "cache"} | changes.pop("data", {}),
            "tokenizer": {"kind": "char"},
            "model": model | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "generation": changes.pop("generation", {"max_new_tokens": 40}),
            "out": place / out,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two different names a line, in all orders alike."""
    directory = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(1)
    pairs = [rng.choice(NAMES, 2, replace=False) for _ in range(400)]
    (directory / "names.txt").write_text("".join(f"{a} and {b}\n" for a, b in pairs))
    return directory


@pytest.fixture(scope="module")
def learned(unsynced: None, place: Path) -> tuple[Path, Notes]:
    notes = Notes()
    train = {"max_tokens": 512, "log_every": 100, "eval_every": 100, "save_every": 100}
    made = recipe(
        place, "learned", steps=600, data={"max_len": 32}, model={"d_model": 32, "dropout": 0.0}, train=train
    )
    run_training(made, report=notes)
    return made.out, notes


def shell(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["generate", *map(str, arguments)])
    return code, *capsys.readouterr()
