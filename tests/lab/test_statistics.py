import math

import pytest

from polyhead.lab.statistics import (
    mean_interval,
    t_quantile,
    verdict_above,
    verdict_all,
    verdict_any,
    verdict_below,
    verdict_less,
    verdict_within,
)

NAN = math.nan


def test_interval_matches_student():
    # Student (1908), table of additional hours of sleep (drug 2 less drug 1): mean 1.58, 95 % interval 0.70
    # to 2.46
    interval = mean_interval([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert interval.mean == pytest.approx(1.58)
    assert (interval.low, interval.high) == pytest.approx((0.70, 2.46), abs=0.005)


def test_t_quantiles_match_tables():
    for freedom, t in {1: 12.706, 10: 2.228, 15: 2.131, 19: 2.093, 29: 2.045, 999: 1.962}.items():
        assert t_quantile(freedom) == pytest.approx(t, rel=0.01)


def test_single_value_has_no_verdict():
    assert mean_interval([3.0]).half_width == math.inf
    assert verdict_above([3.0]) is None
    assert verdict_below([3.0], 100.0) is None


def test_verdict_requires_entire_interval():
    assert verdict_above([1.0, 1.1, 0.9]) is True
    assert verdict_above([-1.0, -1.1, -0.9]) is False
    assert verdict_above([1.0, -0.5, 0.4]) is None
    assert verdict_below([1.0, 1.1, 0.9], 2.0) is True
    assert verdict_below([1.0, 1.1, 0.9], 0.5) is False
    assert verdict_within([1.0, 1.01, 0.99], 1.0, 0.1) is True
    assert verdict_within([1.3, 1.31, 1.29], 1.0, 0.1) is False
    assert verdict_within([1.0, 1.4, 0.6], 1.0, 0.1) is None  # the mean is right, the interval too wide


def test_verdict_less_compares_pairs_of_seeds():
    a, b = [1.0, 5.0, 9.0], [1.2, 5.2, 9.3]  # far apart between seeds, always less within a seed
    assert verdict_less(a, b) is True
    assert verdict_less(b, a) is False
    assert verdict_less(a, [1.2, 4.0, 9.3]) is None


def test_verdict_less_with_margin():
    a, b = [1.05, 2.06, 3.04], [1.0, 2.0, 3.0]
    assert verdict_less(a, b) is False
    assert verdict_less(a, b, -0.1) is True
    assert verdict_less(a, b, -0.01) is False
    assert verdict_less([0.5, 1.5, 2.5], b, 0.4) is True
    assert verdict_less([0.5, 1.51, 2.49], b, 0.6) is False


def test_diverged_is_worse_only_if_all_diverged():
    assert verdict_less([1.0, 1.0], [NAN, NAN]) is True
    assert verdict_less([NAN, NAN], [1.0, 1.0]) is False
    assert verdict_less([1.0, 1.0], [NAN, 0.5]) is None
    assert verdict_less([NAN, 1.0], [NAN, 1.0]) is None


def test_verdicts_of_all_and_any():
    assert [verdict_all(v) for v in ([True, True], [True, None], [None, False])] == [True, None, False]
    assert [verdict_any(v) for v in ([False, True], [False, None], [False, False])] == [True, None, False]


def test_interval_as_text():
    texts = [mean_interval(values).to_text() for values in ([1.0, 1.5, 2.0], [1.0], [NAN, 1.0])]
    assert texts == ["1.5 ± 1.2", "1", "none"]
