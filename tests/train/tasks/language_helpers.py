from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import Notes
from tests.train.tasks.text_recipes import text_recipe

from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.train.run_training import run_training

NAMES = ["anna", "bert", "carl", "dora"]


def recipe(directory: Path, out: str, *, task: str = "language-model", **changes: Any) -> Recipe:
    data = {"train": "names.txt", "max_len": 16} | changes.pop("data", {})
    generation = changes.pop("generation", {"max_new_tokens": 40})
    return text_recipe(directory, out, task, data=data, generation=generation, **changes)


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(1)
    pairs = [rng.choice(NAMES, 2, replace=False) for _ in range(400)]
    (directory / "names.txt").write_text("".join(f"{a} and {b}\n" for a, b in pairs))
    return directory


def train_names(directory: Path) -> tuple[Path, Notes]:
    notes = Notes()
    train = {"max_tokens": 512, "log_every": 100, "eval_every": 150, "save_every": 300}
    model = {"d_model": 32, "dropout": 0.0}
    trained_run = recipe(directory, "trained", steps=300, data={"max_len": 32}, model=model, train=train)
    run_training(trained_run, report=notes)
    return trained_run.out, notes


@pytest.fixture(scope="module")
def trained_run(no_fsync: None, corpus_dir: Path) -> tuple[Path, Notes]:
    return train_names(corpus_dir)


def shell(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["generate", *map(str, arguments)])
    return code, *capsys.readouterr()
