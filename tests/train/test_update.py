import pytest
import torch
from tests.train.conftest import (
    Toy,
    equal_states,
    loop_config,
    toy_training,
    train_toy,
    user_error,
    without_clock,
)
from tests.train.test_loop import NaNTask

from polyhead.checkpoint import checkpoint
from polyhead.train import loop
from polyhead.train.strategies import base
from polyhead.train.update import PendingMetrics, can_defer_metrics

pytestmark = pytest.mark.usefixtures("no_fsync")


def set_late(monkeypatch, is_late=True) -> None:
    monkeypatch.setattr(base, "can_defer_metrics", lambda training: is_late)


@pytest.fixture
def train_both(tmp_path, monkeypatch):
    """Train with numbers read at once and late, compare, and return the training, outcome and notes."""

    def train(make_task, **changes):
        results = []
        for is_late in (False, True):
            set_late(monkeypatch, is_late)
            root = tmp_path / str(is_late)
            training, outcome, notes = train_toy(root, make_task(), loop_config(**changes))
            numbers = training.progress, outcome.status, outcome.step, without_clock(notes.rows), notes.lines
            results.append((training, (*numbers, checkpoint.list_steps(root))))
        (a, expected), (b, actual) = results
        assert equal_states(a, b)
        assert expected == actual
        return b, outcome, notes

    return train


@pytest.mark.parametrize("log_every", [1, 3, 5])
def test_logs_weights_and_checkpoints_are_the_same(log_every, train_both):
    train_both(Toy, log_every=log_every, eval_every=4, save_every=5, ema=0.9, accumulate=2, keep=9)
    # the message of a step comes during the next one
    training, _, notes = train_both(lambda: NaNTask({3, 4, 6, 11}), log_every=4, ema=0.9, save_every=6)
    assert training.progress.skipped == len(notes.lines) == 4
    losses = [3.0, 2.0, 2.5, 2.6, 2.7, 2.8]
    _, outcome, _ = train_both(lambda: Toy(lambda _, left=iter(losses): next(left)), eval_every=2, patience=2)
    assert outcome.status == "stopped early"


def test_diverged_run_has_the_same_error(tmp_path, monkeypatch):
    messages, root = [], tmp_path / "run"
    for is_late in (False, True):
        set_late(monkeypatch, is_late)
        with user_error("at step 15; the last good checkpoint is") as error:
            train_toy(root, NaNTask(range(6, 99)), loop_config(steps=30, log_every=30, save_every=3))
        messages.append(str(error.value))
        assert max(checkpoint.list_steps(root)) < 6
    assert messages[0] == messages[1]


@pytest.mark.parametrize("stop_at", [1, 4, 5, 11])
def test_stopped_run_resumes_bit_for_bit(stop_at, tmp_path, monkeypatch):
    set_late(monkeypatch)
    config = loop_config(log_every=3, ema=0.9, accumulate=2)
    expected, _, notes = train_toy(tmp_path / "all", Toy(), config)
    _, outcome, first = train_toy(tmp_path / "cut", Toy(), config, stop_at=stop_at)
    assert (outcome.status, outcome.step) == ("interrupted", stop_at)
    resumed_state, _, second = train_toy(tmp_path / "cut", Toy(), config, resume=True)
    assert equal_states(expected, resumed_state)
    assert expected.progress == resumed_state.progress
    assert without_clock([*first.rows, *second.rows]) == without_clock(notes.rows)


def test_step_is_read_after_the_next_is_queued(tmp_path, monkeypatch):
    set_late(monkeypatch)
    events, step, read = [], loop.train_step, PendingMetrics.read

    def note_step(strategy, *args):
        metrics = step(strategy, *args)
        events.append(f"queued {metrics.step}")
        return metrics

    def note_read(self):
        events.append(f"read {self.step}")
        return read(self)

    monkeypatch.setattr(loop, "train_step", note_step)
    monkeypatch.setattr(PendingMetrics, "read", note_read)
    train_toy(tmp_path, Toy(), loop_config(steps=4, log_every=3))
    expected = ["queued 1", "queued 2", "read 1", "queued 3", "read 2", "read 3", "queued 4", "read 4"]
    assert events == expected


def test_late_reading_needs_gpu_and_skipping_optimizer():
    def can_defer(device="meta", loss_scale=None, **changes):
        training = toy_training(loop_config(**changes))
        training.device, training.loss_scale = torch.device(device), loss_scale
        return can_defer_metrics(training)

    assert can_defer()
    assert not can_defer(device="cpu")
    assert not can_defer(optimizer={"name": "adafactor"})
    assert not can_defer(loss_scale=object())
