"""Tests of train/samples/classes.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


def test_accuracy_by_class_is_that_of_classify(place: Path) -> None:
    recipe = task_recipe(place, "classification", place / "by-class", steps=30)
    run, _ = run_training(recipe, report=Notes())
    rows = [line.split("\t") for line in (place / "valid.tsv").read_text().splitlines()[1:]]
    said = [found.label for found in run.classify([text for text, _ in rows])]
    samples = read_run(recipe.out).samples
    for group in samples.breakdowns[0].groups:
        right = [a == label for a, (_, label) in zip(said, rows, strict=True) if label == group.name]
        assert (group.size, group.value) == (len(right), pytest.approx(100 * sum(right) / len(right)))
    assert samples.confusion is not None
    wanted = [
        [sum(a == column and b == row for a, (_, b) in zip(said, rows, strict=True)) for column in ("cold",
            "warm")]
        for row in ("cold", "warm")
    ]  # fmt: skip
    assert samples.confusion.counts == wanted
    wrong = sum(a != label for a, (_, label) in zip(said, rows, strict=True))
    shown = [example for example in samples.examples if example["output"] != example["reference"]]
    assert len(shown) == min(wrong, len(shown)) and len(shown) >= min(wrong, 24)
