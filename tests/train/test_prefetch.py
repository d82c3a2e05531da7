"""Batches collated during the step before: the same numbers, from the same place, also when it is cut."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Toy, equal
from tests.train.loop_helpers import config, run
from torch import nn

from polyhead.nn.device import host_copy, to_model_device
from polyhead.nn.loss import Loss
from polyhead.train import loop
from polyhead.train.prefetch import BatchPrefetcher
from polyhead.train.progress import Progress

pytestmark = pytest.mark.usefixtures("unsynced")
ELSEWHERE = torch.device("meta")


def plan(epoch: int) -> list[int]:
    """Epochs of three and of four batches."""
    return [10 * epoch + i for i in range(3 + epoch % 2)]


def make(progress: Progress, device: torch.device = ELSEWHERE) -> BatchPrefetcher:
    """Batches with a random number each."""

    def collate(rows: int) -> list[tuple[int, torch.Tensor]]:
        return [(rows, torch.rand(1))]

    return BatchPrefetcher(progress, plan, 2, collate, lambda step: 100 + step, device)


def steps(progress: Progress, n: int, *, ahead: bool) -> list[Any]:
    """Of each step its batches, what is drawn after them, and the position that a checkpoint would have."""
    source, found = make(progress), []
    for step in range(1, n + 1):
        batches = [(rows, float(x)) for rows, x in source.take(step)]
        drawn = torch.rand(2)[:1].tolist()
        if ahead:
            source.prefetch(step + 1)
        found.append((batches, drawn, torch.rand(1).item(), progress.epoch, progress.index))
    return found


def test_steps_are_the_same_as_without() -> None:
    rows = (row for epoch in range(9) for row in plan(epoch))
    found = steps(Progress(), 9, ahead=True)
    assert found == steps(Progress(), 9, ahead=False)
    for step, (batches, drawn, later, _, _) in enumerate(found, 1):
        assert [row for row, _ in batches] == list(islice(rows, 2))
        torch.manual_seed(100 + step)
        numbers = [torch.rand(1).item() for _ in batches]
        assert [x for _, x in batches] == numbers
        assert [drawn, later] == [torch.rand(2)[:1].tolist(), torch.rand(1).item()]


def test_the_position_is_that_of_the_batches_taken() -> None:
    progress = Progress()
    wanted = [(row // 10, row % 10 + 1) for epoch in range(4) for row in plan(epoch)][1::2]
    found = steps(progress, 6, ahead=True)
    assert [(epoch, index) for *_, epoch, index in found] == wanted[:6]
    source = make(Progress(epoch=progress.epoch, index=progress.index))  # as a resume reads it
    assert [rows for rows, _ in source.take(7)] == [32, 33]


def test_tensors_are_copied_once_and_only_where_it_helps() -> None:
    source = make(Progress())
    source.take(1)
    source.prefetch(2)
    ((_, x), _) = source.take(2)
    copy = x.device_copy  # type: ignore[attr-defined]
    assert copy.device == ELSEWHERE
    model = nn.Linear(1, 1, device=ELSEWHERE)
    (taken,) = to_model_device(model, (x,))
    assert taken is copy
    assert host_copy(taken) is x
    (again,) = to_model_device(model, (x,))
    assert again is not copy
    here = make(Progress(), torch.device("cpu"))
    here.prefetch(1)
    assert [rows for rows, _ in here.take(1)] == [0, 1]
    assert not hasattr(here.take(2)[0][1], "device_copy")


class Noisy(Toy):
    """Draws when it collates and in its loss."""

    def collate(self, rows: np.ndarray) -> Any:
        return super().collate(rows), torch.rand(len(rows), 1)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        rows, noise = batch
        total = (model(self.x[rows] + noise) - self.y[rows]).square().sum()
        return Loss(total, total.detach(), len(rows))

    def count_labels(self, batch: Any) -> int:
        return len(batch[0])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_that_prefetches_is_the_same_and_can_be_cut(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(steps=17, accumulate=accumulate, eval_every=4)
    wanted, _, usual = run(tmp_path / "usual", Noisy(), settings)
    monkeypatch.setattr(loop, "BatchPrefetcher", lambda *rest: BatchPrefetcher(*rest[:-1], ELSEWHERE))
    task = Noisy()
    found, _, notes = run(tmp_path / "ahead", task, settings)
    assert equal(found, wanted)
    assert notes.series("loss") == usual.series("loss")
    assert found.progress == wanted.progress
    assert len(task.ledger) == 17 * accumulate + 1  # and the largest one: none after the last step
    for stop in (1, 5, 6):  # 5 is where an epoch ends, if nothing accumulates
        cut = tmp_path / f"cut-{stop}"
        stopped, outcome, _ = run(cut, Noisy(), settings, stop_at=stop)
        assert (outcome.status, outcome.step) == ("interrupted", stop)
        done = stop * accumulate  # batches of five in an epoch
        assert stopped.progress.epoch * 5 + stopped.progress.index == done
        resumed, outcome, _ = run(cut, Noisy(), settings, resume=True)
        assert outcome.status == "done"
        assert equal(resumed, wanted)
