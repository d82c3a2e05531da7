"""What the first steps predict, with a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from polyhead.train.eta import EtaReporter


class Notes:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log_train(self, row: Any) -> None:
        self.rows.append({"split": "train", **row})

    def log_valid(self, row: Any) -> None:
        self.rows.append({"split": "valid", **row})

    def info(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class Hands:
    """A clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def learn(timed: EtaReporter, clock: Hands, steps: range, evaluate: int = 20) -> None:
    """Two seconds a step, a row every ten steps; an evaluation of seven seconds now and then, not always
    after a row.
    """
    timed.info("begin")
    for step in steps:
        clock.now += 2.0
        if step % 10 == 0:
            timed.log_train({"step": step})
        if step % evaluate == 0:
            clock.now += 7.0
            timed.log_valid({"step": step, "seconds": 7.0})


@pytest.mark.parametrize("evaluate", [20, 15, 7])
def test_evaluations_are_no_learning(evaluate: int) -> None:
    clock, notes = Hands(), Notes()
    timed = EtaReporter(notes, clock=clock)
    clock.now = 1000.0  # of making a tokenizer
    learn(timed, clock, range(1, 101), evaluate)
    assert [(row["step"], row["seconds"]) for row in notes.rows if row["split"] == "train"] == [
        (n, 2.0 * n) for n in range(10, 101, 10)
    ]
    took = 7 * (100 // evaluate)
    said = f"{took // 60} min {took % 60:02} s" if took >= 60 else f"{took} s"
    assert (
        timed.compare_forecast(100)
        == f"planned 3 min 20 s at step 30, took 3 min 20 s (+0%); evaluations {said} more"
    )


def test_a_run_that_goes_on_goes_on_counting() -> None:
    clock, notes = Hands(), Notes()
    whole = EtaReporter(notes, clock=clock)
    learn(whole, clock, range(1, 101))
    first, clock = Notes(), Hands()
    learn(EtaReporter(first, clock=clock), clock, range(1, 47))
    clock.now += 5000.0  # a night
    # killed, and resumed at the checkpoint of step 40
    kept = [row for row in first.rows if row["step"] <= 40]
    again = Notes()
    second = EtaReporter(again, kept, 40, clock)
    clock.now += 100.0
    learn(second, clock, range(41, 101))
    assert kept + again.rows == notes.rows
    assert second.compare_forecast(100) == whole.compare_forecast(100) != ""


def test_the_steps_between_the_last_row_and_the_checkpoint_count_as_well() -> None:
    """Nobody wrote down what they took: they count at the mean speed of those before."""
    clock, first, again = Hands(), Notes(), Notes()
    learn(EtaReporter(first, clock=clock), clock, range(1, 47))
    second = EtaReporter(again, first.rows, 46, clock)
    learn(second, clock, range(47, 101))
    assert [row["seconds"] for row in again.rows if row["split"] == "train"] == [
        2.0 * n for n in range(50, 101, 10)
    ]


def test_a_step_that_became_slower_is_told() -> None:
    clock = Hands()
    timed = EtaReporter(Notes(), clock=clock)
    for step in range(10, 101, 10):
        clock.now += 10.0 if step <= 50 else 20.0
        timed.log_train({"step": step})
    assert (
        timed.compare_forecast(100)
        == "planned 1 min 40 s at step 30, took 2 min 30 s (+50%); evaluations 0 s more"
    )
    assert timed.compare_forecast(40) == ""
