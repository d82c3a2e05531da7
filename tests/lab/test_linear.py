import pytest

from polyhead.lab import linear


def test_the_crossover_is_where_the_curves_meet():
    points = [2.0**i for i in range(4, 10)]
    times = {"softmax": [(n, n * n) for n in points], "linear": [(n, 100 * n) for n in points]}
    assert linear.find_crossover(times) == pytest.approx(100.0)
    assert (
        linear.find_crossover({"softmax": times["linear"], "linear": times["softmax"]}) is None
    )  # it was faster, and ends slower
    assert (
        linear.find_crossover({"softmax": times["softmax"], "linear": [(n, n / 2) for n in points]}) == 16.0
    )
    assert "about 100 tokens" in linear.describe_crossover(times)
