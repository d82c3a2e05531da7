import math

import pytest
from tests.train.conftest import Toy, loop_config, never_measured, train_toy

from polyhead.checkpoint import checkpoint
from polyhead.train.progress import Progress
from polyhead.train.train_state import load_final_weights

LOSSES = [5.0, 4.0, math.nan, 4.5, 3.0, 3.0, 3.5, 3.1, 2.0]


def make_task(n_past: int = 0) -> Toy:
    losses = iter(LOSSES[n_past:])
    return Toy(lambda model: next(losses))


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.acceptance("B7", "B11")
@pytest.mark.parametrize("stop_at", [None, *range(1, 17)])
def test_patience_and_best_metric_survive_resume(stop_at, tmp_path):
    config = loop_config(steps=18, eval_every=2, save_every=3, keep=1, patience=3)
    if stop_at:
        train_toy(tmp_path, make_task(), config, stop_at)
    training, outcome, _ = train_toy(tmp_path, make_task((stop_at or 0) // 2), config, resume=True)
    assert (outcome.status, outcome.step) == ("stopped early", 16)
    progress = training.progress
    assert (progress.best, progress.best_step, progress.evals_since_best) == (3.0, 10, 3)
    assert checkpoint.list_steps(tmp_path) == [10, 16]
    assert load_final_weights(training, config, tmp_path, never_measured).description == "checkpoint 10"
    # the run is over: another resume trains no step
    resumed_state, outcome, notes = train_toy(tmp_path, Toy(), config, resume=True)
    assert (outcome.status, outcome.step, notes.rows) == ("stopped early", 16, [])
    assert resumed_state.progress == progress


def test_row_of_a_skipped_step_has_no_loss(tmp_path):
    task = Toy()
    task.y[task.epoch_batches(0)[0]] = math.nan  # the first batch
    _, outcome, notes = train_toy(tmp_path, task, loop_config(steps=2))
    first, second = [row for row in notes.rows if row["split"] == "train"]
    assert outcome.step == 2 and (first["skipped"], second["skipped"]) == (1, 1)
    assert all(math.isnan(first[name]) for name in ("loss", "nll", "ppl", "grad_norm"))
    assert all(math.isfinite(second[name]) for name in ("loss", "nll", "ppl", "grad_norm"))


def test_counters_of_older_checkpoints_are_read():
    progress = Progress(step=7, consecutive_skips=2, evals_since_best=3)
    state = progress.to_json()
    assert Progress.from_json(state) == progress
    state["in_a_row"], state["stale"] = state.pop("consecutive_skips"), state.pop("evals_since_best")
    assert Progress.from_json(state) == progress
