from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import Notes

from polyhead.config.recipe import Recipe
from polyhead.train.run_training import run_training

WORDS = {"good": ["fine", "great", "lovely"], "bad": ["dull", "awful", "weak"]}
WORDS["odd"] = ["strange", "weird", "queer"]
FILLERS = ["a", "film", "plot", "with", "some", "actors", "and", "music"]


def recipe(directory: Path, out: str, *, task: Any = "classification", **changes: Any) -> Recipe:
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.1, "max_len": 32}
    model |= {"norm_first": True, "pooling": "max"}
    train = {"steps": 24, "max_tokens": 160, "lr": 1e-2, "precision": "fp32", "seed": 3, "log_every": 1}
    train |= {"eval_every": 6, "save_every": 5, "schedule": {"name": "cosine", "warmup": 4}}
    data = {split: f"{split}.tsv" for split in ("train", "valid", "test")}
    data |= {"text": "text", "label": "label", "root": directory, "cache_dir": directory / "cache"}
    return Recipe.model_validate(
        {
            "task": task,
            "data": data | changes.pop("data", {}),
            "tokenizer": {"vocab_size": 300},
            "model": model | changes.pop("model", {}),
            "train": train | {"best_metric": "accuracy"} | changes.pop("train", {}),
            "out": directory / out,
        }
    )


def random_rows(rng: np.random.Generator, count: int) -> list[tuple[str, str, str]]:
    rows = []
    for _ in range(count):
        labels = [str(rng.choice(list(WORDS))) for _ in range(2)]
        texts = []
        for label in labels:
            words = [*rng.choice(FILLERS, int(rng.integers(1, 6))), rng.choice(WORDS[label])]
            texts.append(" ".join(map(str, rng.permutation(words))))
        rows.append((labels[0], *texts))
    return rows


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(1)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        lines = "".join(f"{label}\t{a}\t{b}\n" for label, a, b in random_rows(rng, count))
        (directory / f"{split}.tsv").write_text("label\ttext\tsecond\n" + lines)
    return directory


def train_classifier(directory: Path) -> tuple[Path, Notes]:
    notes = Notes()
    intervals = {"eval_every": 80, "save_every": 80, "log_every": 80}
    trained_run = recipe(directory, "trained", train={"steps": 80, **intervals})
    run_training(trained_run, report=notes)
    return trained_run.out, notes


@pytest.fixture(scope="module")
def trained_run(no_fsync: None, corpus_dir: Path) -> tuple[Path, Notes]:
    return train_classifier(corpus_dir)
