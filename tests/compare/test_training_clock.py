from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.compare import training_clock
from polyhead.compare.training_clock import TrainingClock, read_clock
from polyhead.viz.eta_model import StepTime

ROW = {"loss": 1.0}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    time = [100.0]
    monkeypatch.setattr(training_clock.time, "perf_counter", lambda: time[0])
    return time


def test_evaluations_and_what_comes_before_the_first_step_do_not_count(
    tmp_path: Path, now: list[float]
) -> None:
    ours = TrainingClock(tmp_path / "clock", 0)
    now[0] += 50  # tokenizer, text
    ours.info("about to begin")
    now[0] += 3
    ours.log_train({"step": 4})
    now[0] += 20  # an evaluation
    ours.log_valid({"step": 4})
    now[0] += 5
    ours.info("a step was skipped")
    ours.log_train({"step": 8})
    ours.close()
    assert read_clock(tmp_path / "clock") == [StepTime(4, 3.0), StepTime(8, 8.0)]


def test_a_resumed_cell_goes_on_counting_from_its_checkpoint(tmp_path: Path, now: list[float]) -> None:
    path = tmp_path / "clock"
    path.write_text("[4, 3.0]\n[8, 8.0]\n[12, 11.0]\n[16, 1")  # killed while it wrote
    ours = TrainingClock(path, 10)
    now[0] += 2
    ours.log_train({"step": 12})
    ours.close()
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0), StepTime(10, 9.5), StepTime(12, 11.5)]
