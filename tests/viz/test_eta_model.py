from polyhead.viz.eta_model import StepTime, TimeForecast, format_seconds, interpolate_seconds, predict_time


def test_seconds_are_interpolated_and_formatted():
    ticks = [StepTime(4, 3.0), StepTime(8, 9.0)]
    assert [interpolate_seconds(ticks, step) for step in (0, 2, 4, 5, 8, 16)] == [0, 1.5, 3, 4.5, 9, 18]
    assert interpolate_seconds([], 5) == 0
    expected = ["0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 01 min", "25 h 00 min"]
    assert [format_seconds(s) for s in (0.4, 59, 60, 3599, 3661, 90000)] == expected


def test_prediction_excludes_warm_up():
    ticks = [StepTime(10, 30.0), StepTime(20, 40.0), StepTime(30, 50.0), StepTime(40, 99.0)]
    expected = TimeForecast(50.0 + 70 * 1.0, 30)  # a second per step, after the first ten
    assert predict_time(ticks, 100) == expected
    for few in ([], [(50, 1.0)], [(10, 1.0), (29, 2.0)], [(10, 1.0), (60, 2.0)]):
        assert predict_time([StepTime(*tick) for tick in few], 100) is None
