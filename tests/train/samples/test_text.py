"""Tests of train/samples/text.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

from polyhead.core.registry import TASK
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_run

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


def test_the_loss_by_place_averages_to_the_loss_of_the_rows(place: Path) -> None:
    recipe = task_recipe(place, "chat", place / "by-place")
    run, _ = run_training(recipe, report=Notes())
    task = TASK.get("chat").open(recipe, run.tokenizer, Notes())
    chosen = torch.linspace(0, len(task.valid) - 1, 8).long().unique().numpy()
    batch = task.valid.collate(chosen, run.tokenizer.pad_id)
    with torch.inference_mode():
        logits = run.model(batch.tokens, batch.pos).flatten(0, 1)
    wanted = float(F.cross_entropy(logits, batch.labels.flatten(), ignore_index=-100))
    for breakdown in read_run(recipe.out).samples.breakdowns:
        total = sum(group.size for group in breakdown.groups)
        mean = sum(group.size * group.value for group in breakdown.groups) / total
        assert mean == pytest.approx(wanted, rel=1e-4)
