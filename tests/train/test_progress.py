"""Tests of train/progress.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.train.conftest import Toy
from tests.train.loop_helpers import config, run, unmeasured
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.train.progress import Progress
from polyhead.train.train_state import load_final_weights

Ints = NDArray[np.int64]


def sentences(n: int, seed: int = 0) -> tuple[Ints, Ints]:
    """Lengths like those of a corpus: the sides of a pair are alike."""
    rng = np.random.default_rng(seed)
    source = rng.poisson(12, n) + 2
    return source, np.maximum(2, source + rng.integers(-4, 5, n))


@pytest.mark.acceptance("B9")
def test_the_place_after_the_last_batch_is_the_next_epoch() -> None:
    def plan(epoch: int) -> list[Ints]:
        return plan_epoch(*sentences(100), max_tokens=300, seed=5, epoch=epoch)

    progress = Progress(index=len(plan(0)))
    after = next(progress.iter_batches(plan))
    assert (progress.epoch, progress.index) == (1, 1)
    assert after.tolist() == plan(1)[0].tolist()


LOSSES = [5.0, 4.0, math.nan, 4.5, 3.0, 3.0, 3.5, 3.1, 2.0]


def scripted(first: int = 0) -> Callable[[nn.Module], float]:
    losses: Iterator[float] = iter(LOSSES[first:])
    return lambda model: next(losses)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("B7", "B11")
@pytest.mark.parametrize("stop_at", [None, *range(1, 17)])
def test_patience_and_the_best_survive_a_resume(tmp_path: Path, stop_at: int | None) -> None:
    settings = config(steps=18, eval_every=2, save_every=3, keep=1, patience=3)
    if stop_at:
        run(tmp_path, Toy(scripted()), settings, stop_at)
    training, outcome, _ = run(tmp_path, Toy(scripted((stop_at or 0) // 2)), settings, resume=True)
    assert (outcome.status, outcome.step) == ("stopped early", 16)
    progress = training.progress
    assert (progress.best, progress.best_step, progress.stale) == (3.0, 10, 3)
    assert checkpoint.list_steps(tmp_path) == [10, 16]
    assert load_final_weights(training, settings, tmp_path, unmeasured).description == "checkpoint 10"
    # the run is over, and saying --resume once more does not train a step more
    again, outcome, notes = run(tmp_path, Toy(), settings, resume=True)
    assert (outcome.status, outcome.step, notes.rows) == ("stopped early", 16, [])
    assert again.progress == progress
