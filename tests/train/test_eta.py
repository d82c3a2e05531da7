import pytest
from tests.train.conftest import Notes

from polyhead.train.loggers import EtaReporter


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def train_seconds(notes) -> list[tuple[int, float]]:
    return [(row["step"], row["seconds"]) for row in notes.rows if row["split"] == "train"]


def run_steps(eta, clock, steps, eval_every=20) -> None:
    eta.info("start")
    for step in steps:
        clock.now += 2.0
        if step % 10 == 0:
            eta.log_train({"step": step})
        if step % eval_every == 0:
            clock.now += 7.0
            eta.log_valid({"step": step, "seconds": 7.0})


@pytest.mark.parametrize("eval_every", [20, 15, 7])
def test_evaluations_do_not_count_as_training(eval_every):
    clock, notes = Clock(), Notes()
    eta = EtaReporter(notes, clock=clock)
    clock.now = 1000.0  # of training a tokenizer
    run_steps(eta, clock, range(1, 101), eval_every)
    assert train_seconds(notes) == [(n, 2.0 * n) for n in range(10, 101, 10)]


def test_resumed_run_continues_to_count():
    clock, notes = Clock(), Notes()
    reference = EtaReporter(notes, clock=clock)
    run_steps(reference, clock, range(1, 101))
    first, second, clock = Notes(), Notes(), Clock()
    run_steps(EtaReporter(first, clock=clock), clock, range(1, 47))
    clock.now += 5000.0  # killed, and resumed at the checkpoint of step 40
    rows = [row for row in first.rows if row["step"] <= 40]
    resumed_eta = EtaReporter(second, rows, 40, clock)
    clock.now += 100.0
    run_steps(resumed_eta, clock, range(41, 101))
    assert rows + second.rows == notes.rows
    third = Notes()  # six steps after the last row count at the mean speed of those before
    run_steps(EtaReporter(third, first.rows, 46, clock), clock, range(47, 101))
    assert train_seconds(third) == [(n, 2.0 * n) for n in range(50, 101, 10)]
