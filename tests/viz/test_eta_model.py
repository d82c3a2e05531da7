import pytest

from polyhead.viz.eta_model import StepTime, TimeForecast, format_seconds, interpolate_seconds, predict_time


def test_seconds_between_ticks_go_by_proportion():
    ticks = [StepTime(4, 3.0), StepTime(8, 9.0)]
    assert [interpolate_seconds(ticks, step) for step in (0, 2, 4, 5, 8, 16)] == [0, 1.5, 3, 4.5, 9, 18]
    assert interpolate_seconds([], 5) == 0


def test_the_prediction_leaves_the_warm_up_out():
    ticks = [StepTime(10, 30.0), StepTime(20, 40.0), StepTime(30, 50.0), StepTime(40, 99.0)]
    assert predict_time(ticks, 100) == TimeForecast(
        50.0 + 70 * 1.0, 30
    )  # a second a step, behind the first ten


@pytest.mark.parametrize(
    "ticks",
    [[], [StepTime(50, 1.0)], [StepTime(10, 1.0), StepTime(29, 2.0)], [StepTime(10, 1.0), StepTime(60, 2.0)]],
)
def test_what_is_no_prediction(ticks):
    assert predict_time(ticks, 100) is None


def test_durations_are_said_as_people_do():
    assert [format_seconds(s) for s in (0.4, 59, 60, 3599, 3661, 90000)] == [
        "0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 01 min", "25 h 00 min",
    ]  # fmt: skip
