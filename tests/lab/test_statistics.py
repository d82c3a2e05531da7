import math

import pytest

from polyhead_lab import statistics

NAN = math.nan


def test_interval_and_quantiles_match_tables():
    # Student (1908), table of additional hours of sleep (drug 2 less drug 1): mean 1.58, 95 % interval 0.70
    # to 2.46
    interval = statistics.mean_interval([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert interval.mean == pytest.approx(1.58)
    assert (interval.low, interval.high) == pytest.approx((0.70, 2.46), abs=0.005)
    assert statistics.mean_interval([3.0]).half_width == math.inf
    for freedom, t in {1: 12.706, 10: 2.228, 15: 2.131, 19: 2.093, 29: 2.045, 999: 1.962}.items():
        assert statistics.t_quantile(freedom) == pytest.approx(t, rel=0.01)
    texts = [statistics.mean_interval(values).to_text() for values in ([1.0, 1.5, 2.0], [1.0], [NAN, 1.0])]
    assert texts == ["1.5 ± 1.2", "1", "none"]
    texts = [statistics.MeanInterval(1234.6, width).to_text() for width in (99.4, 99.5, 190.2, 2e7, math.inf)]
    assert texts == ["1235 ± 99", "1235 ± 100", "1235 ± 190", "1235 ± 2e+07", "1235"]


# the mean may be right and the interval too wide; a single value has no interval
@pytest.mark.whole
@pytest.mark.parametrize(
    ("verdict", "arguments", "expected"),
    [
        (statistics.verdict_above, [[3.0]], None),
        (statistics.verdict_above, [[1.0, 1.1, 0.9]], True),
        (statistics.verdict_above, [[-1.0, -1.1, -0.9]], False),
        (statistics.verdict_above, [[1.0, -0.5, 0.4]], None),
        (statistics.verdict_below, [[3.0], 100.0], None),
        (statistics.verdict_below, [[1.0, 1.1, 0.9], 2.0], True),
        (statistics.verdict_below, [[1.0, 1.1, 0.9], 0.5], False),
        (statistics.verdict_within, [[1.0, 1.01, 0.99], 1.0, 0.1], True),
        (statistics.verdict_within, [[1.3, 1.31, 1.29], 1.0, 0.1], False),
        (statistics.verdict_within, [[1.0, 1.4, 0.6], 1.0, 0.1], None),
        # far apart between seeds, always less within a seed
        (statistics.verdict_less, [[1.0, 5.0, 9.0], [1.2, 5.2, 9.3]], True),
        (statistics.verdict_less, [[1.2, 5.2, 9.3], [1.0, 5.0, 9.0]], False),
        (statistics.verdict_less, [[1.0, 5.0, 9.0], [1.2, 4.0, 9.3]], None),
        (statistics.verdict_less, [[1.05, 2.06, 3.04], [1.0, 2.0, 3.0], -0.1], True),
        (statistics.verdict_less, [[1.05, 2.06, 3.04], [1.0, 2.0, 3.0], -0.01], False),
        (statistics.verdict_less, [[0.5, 1.5, 2.5], [1.0, 2.0, 3.0], 0.4], True),
        (statistics.verdict_less, [[0.5, 1.51, 2.49], [1.0, 2.0, 3.0], 0.6], False),
        # diverged is worse only if all diverged
        (statistics.verdict_less, [[1.0, 1.0], [NAN, NAN]], True),
        (statistics.verdict_less, [[NAN, NAN], [1.0, 1.0]], False),
        (statistics.verdict_less, [[1.0, 1.0], [NAN, 0.5]], None),
        (statistics.verdict_less, [[NAN, 1.0], [NAN, 1.0]], None),
        (statistics.verdict_all, [[True, True]], True),
        (statistics.verdict_all, [[True, None]], None),
        (statistics.verdict_all, [[None, False]], False),
        (statistics.verdict_all, [[]], None),
        (statistics.verdict_any, [[]], None),
        (statistics.verdict_any, [[False, True]], True),
        (statistics.verdict_any, [[False, None]], None),
        (statistics.verdict_any, [[False, False]], False),
    ],
)
def test_verdict_requires_entire_interval(verdict, arguments, expected):
    assert verdict(*arguments) is expected
