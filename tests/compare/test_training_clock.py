import pytest

from polyhead.compare import training_clock
from polyhead.compare.training_clock import TrainingClock, read_clock
from polyhead.viz.eta_model import StepTime


@pytest.fixture
def now(monkeypatch):
    """The time, which tests set."""
    time = [100.0]
    monkeypatch.setattr(training_clock.time, "perf_counter", lambda: time[0])
    return time


def test_clock_excludes_setup_and_evaluation(tmp_path, now):
    clock = TrainingClock(tmp_path / "clock", 0)
    now[0] += 50  # tokenizer, text
    clock.info("about to begin")
    now[0] += 3
    clock.log_train({"step": 4})
    now[0] += 20  # an evaluation
    clock.log_valid({"step": 4})
    now[0] += 5
    clock.info("a step was skipped")
    clock.log_train({"step": 8})
    clock.close()
    assert read_clock(tmp_path / "clock") == [StepTime(4, 3.0), StepTime(8, 8.0)]


def test_resumed_clock_continues_from_checkpoint(tmp_path, now):
    path = tmp_path / "clock"
    path.write_text("[4, 3.0]\n[8, 8.0]\n[12, 11.0]\n[16, 1")  # killed while writing
    clock = TrainingClock(path, 10)
    now[0] += 2
    clock.log_train({"step": 12})
    clock.close()
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0), StepTime(10, 9.5), StepTime(12, 11.5)]
