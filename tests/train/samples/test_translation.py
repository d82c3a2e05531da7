"""Tests of train/samples/translation.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

import polyhead as ph
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


def test_the_examples_are_those_of_the_final_weights(place: Path) -> None:
    recipe = task_recipe(place, "translation", place / "final", ema=0.8, average_checkpoints=2)
    run_training(recipe, report=Notes())
    samples = read_run(recipe.out).samples
    run = ph.load(recipe.out)
    sources = [example["source"] for example in samples.examples]
    assert run.translate(sources, beam_size=1, truncate=True) == [
        example["output"] for example in samples.examples
    ]
    assert sorted(len(source) for source in sources) == [len(source) for source in sources]
    assert sum(group.size for group in samples.breakdowns[0].groups) == len(sources)
