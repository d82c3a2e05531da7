from polyhead.compare import step_budget as training_clock
from polyhead.compare.step_budget import TrainingClock, read_clock
from polyhead.viz.eta_model import StepTime


def test_clock_measures_training_also_when_resumed(tmp_path, monkeypatch):
    now, path = [100.0], tmp_path / "clock"
    monkeypatch.setattr(training_clock.time, "perf_counter", lambda: now[0])
    clock = TrainingClock(path, 0)
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
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0)]
    # resumed from step 10, after it was killed while writing
    path.write_text("[4, 3.0]\n[8, 8.0]\n[12, 11.0]\n[16, 1")
    clock = TrainingClock(path, 10)
    now[0] += 2
    clock.log_train({"step": 12})
    clock.close()
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0), StepTime(10, 9.5), StepTime(12, 11.5)]
