from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.analysis.forecast import Tick, seconds_at
from polyhead.compare import clock
from polyhead.compare.clock import Clock, read_clock

ROW = {"loss": 1.0}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    time = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: time[0])
    return time


def test_evaluations_and_what_comes_before_the_first_step_do_not_count(
    tmp_path: Path, now: list[float]
) -> None:
    ours = Clock(tmp_path / "clock", 0)
    now[0] += 50  # tokenizer, text
    ours.say("about to begin")
    now[0] += 3
    ours.train({"step": 4})
    now[0] += 20  # an evaluation
    ours.valid({"step": 4})
    now[0] += 5
    ours.say("a step was skipped")
    ours.train({"step": 8})
    ours.close()
    assert read_clock(tmp_path / "clock") == [Tick(4, 3.0), Tick(8, 8.0)]


def test_a_resumed_cell_goes_on_counting_from_its_checkpoint(tmp_path: Path, now: list[float]) -> None:
    path = tmp_path / "clock"
    path.write_text("[4, 3.0]\n[8, 8.0]\n[12, 11.0]\n[16, 1")  # killed while it wrote
    ours = Clock(path, 10)
    now[0] += 2
    ours.train({"step": 12})
    ours.close()
    assert read_clock(path) == [Tick(4, 3.0), Tick(8, 8.0), Tick(10, 9.5), Tick(12, 11.5)]


def test_seconds_between_ticks_go_by_proportion() -> None:
    ticks = [Tick(4, 3.0), Tick(8, 9.0)]
    assert [seconds_at(ticks, step) for step in (0, 2, 4, 5, 8, 16)] == [0, 1.5, 3, 4.5, 9, 18]
    assert seconds_at([], 5) == 0
