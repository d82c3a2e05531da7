import pytest

from polyhead_lab import linear


def test_crossover_is_where_curves_meet():
    lengths = [2.0**i for i in range(4, 10)]
    quadratic = [(n, [0.9 * n * n, n * n, 9 * n * n]) for n in lengths]
    linear_times = [(n, [90 * n, 100 * n, 900 * n]) for n in lengths]
    times = {"softmax": quadratic, "linear": linear_times}
    assert linear.find_crossover(times) == pytest.approx(100.0)
    assert linear.find_crossover({"softmax": linear_times, "linear": quadratic}) is None  # slower at the end
    assert (
        linear.find_crossover({"softmax": quadratic, "linear": [(n, [n / 2] * 3) for n in lengths]}) == 16.0
    )
    assert "about 100 tokens" in linear.describe_crossover(times)
    assert linear.slowdown_of_softmax(times) == pytest.approx([5.12] * 3)
