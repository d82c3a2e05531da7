"""A training whose numbers are read a step late is the one whose numbers are read at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Toy, equal, toy_training
from tests.train.loop_helpers import config, run
from tests.train.test_loop import Sick, timeless

from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.train import loop
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.step_numbers import NumbersInFlight, UnreadStep, sum_losses
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(loop, "can_read_late", lambda training, ranks: True)


def both(monkeypatch: pytest.MonkeyPatch, place: Path, make: Any, settings: Any, **how: Any) -> list[Any]:
    """The training, outcome, notes and saved steps, read at once and read late."""
    found = []
    for is_late in (False, True):
        monkeypatch.setattr(loop, "can_read_late", lambda training, ranks, is_late=is_late: is_late)
        root = place / str(is_late)
        training, outcome, notes = run(root, make(), settings, **how)
        assert training.unread is None
        found.append((training, outcome, notes, checkpoint.list_steps(root)))
    return found


def assert_same(found: list[Any]) -> None:
    (a, ended, wanted, steps), (b, late_ended, notes, late_steps) = found
    assert equal(a, b)
    assert a.progress == b.progress
    assert (ended.status, ended.step, steps) == (late_ended.status, late_ended.step, late_steps)
    assert timeless(wanted.rows) == timeless(notes.rows)
    assert wanted.said == notes.said


@pytest.mark.parametrize("log_every", [1, 3, 5])
def test_logs_weights_and_checkpoints_are_the_same(
    log_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(log_every=log_every, eval_every=4, save_every=5, ema=0.9, accumulate=2, keep=9)
    assert_same(both(monkeypatch, tmp_path, Toy, settings))


def test_steps_that_are_not_finite_are_skipped_and_named_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their message comes during the next step, with their own number."""
    settings = config(log_every=4, ema=0.9, save_every=6)
    found = both(monkeypatch, tmp_path, lambda: Sick({3, 4, 6, 11}), settings)
    assert_same(found)
    assert found[1][0].progress.skipped == 4
    assert len(found[1][2].said) == 4


def test_a_diverged_run_ends_with_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = []
    for is_late in (False, True):
        monkeypatch.setattr(loop, "can_read_late", lambda training, ranks, is_late=is_late: is_late)
        root = tmp_path / "run"
        with pytest.raises(UserError) as error:
            run(root, Sick(set(range(6, 99))), config(steps=30, log_every=30, save_every=3))
        words.append(str(error.value))
        for step in checkpoint.list_steps(root):
            assert step < 6
    assert words[0] == words[1]
    assert "at step 15; the last good checkpoint is" in words[0]


def test_patience_ends_both_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([3.0, 2.0, 2.5, 2.6, 2.7, 2.8] * 2)

    def make() -> Toy:
        nonlocal values
        values = iter([3.0, 2.0, 2.5, 2.6, 2.7, 2.8])
        return Toy(lambda model: next(values))

    found = both(monkeypatch, tmp_path, make, config(eval_every=2, patience=2, log_every=5))
    assert_same(found)
    assert found[1][1].status == "stopped early"


@pytest.mark.parametrize("stop_at", [1, 4, 5, 11])
@pytest.mark.usefixtures("late")
def test_a_stopped_run_goes_on_as_if_it_had_not_been(stop_at: int, tmp_path: Path) -> None:
    settings = config(log_every=3, ema=0.9, accumulate=2)
    whole, _, notes = run(tmp_path / "whole", Toy(), settings)
    _, outcome, first = run(tmp_path / "parts", Toy(), settings, stop_at=stop_at)
    assert (outcome.status, outcome.step) == ("interrupted", stop_at)
    resumed, _, second = run(tmp_path / "parts", Toy(), settings, resume=True)
    assert equal(whole, resumed)
    assert whole.progress == resumed.progress
    assert timeless([*first.rows, *second.rows]) == timeless(notes.rows)


@pytest.mark.usefixtures("late")
def test_a_step_is_read_after_the_next_one_was_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    step, read = loop.train_step, UnreadStep.read

    def queued(training: TrainState, *rest: Any) -> str:
        reason = step(training, *rest)
        events.append(("queued", training.progress.step))
        return reason

    def noted(self: UnreadStep) -> tuple[float, float, float]:
        events.append(("read", self.step))
        return read(self)

    monkeypatch.setattr(loop, "train_step", queued)
    monkeypatch.setattr(UnreadStep, "read", noted)
    run(tmp_path, Toy(), config(steps=4, log_every=3))
    wanted = ["queued 1", "queued 2", "read 1", "queued 3", "read 2", "read 3", "queued 4", "read 4"]
    assert [f"{what} {number}" for what, number in events] == wanted


def test_only_a_gpu_of_one_process_and_an_optimizer_that_skips_by_itself_is_read_late() -> None:
    def training(**changes: Any) -> TrainState:
        found = toy_training(config(**changes))
        found.device = torch.device("meta")
        return found

    assert loop.can_read_late(training(), SINGLE_PROCESS)
    assert not loop.can_read_late(toy_training(config()), SINGLE_PROCESS)
    assert not loop.can_read_late(training(optimizer={"name": "adafactor"}), SINGLE_PROCESS)

    class Two:
        world_size = 2

    assert not loop.can_read_late(training(), Two())  # type: ignore[arg-type]
    scaled = training()
    scaled.loss_scale = object()  # type: ignore[assignment]
    assert not loop.can_read_late(scaled, SINGLE_PROCESS)


def test_numbers_come_in_their_order_and_are_added_one_after_another() -> None:
    assert NumbersInFlight([torch.tensor(1.5), torch.tensor(2, dtype=torch.int64)]).read() == [1.5, 2.0]
    losses = [0.1, 1.0, 0.2, 2.0, 0.3, 3.0]
    assert sum_losses(losses) == (0.1 + 0.2 + 0.3, 6.0)
    assert sum_losses([]) == (0.0, 0.0)
