import math

import pytest

from polyhead.lab import prenorm
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


def test_the_interval_is_students():
    # Student (1908), table of additional hours of sleep (drug 2 less drug 1): mean 1.58, 95 % interval 0.70
    # to 2.46
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    found = mean_interval(hours)
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.70, 2.46), abs=0.005)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (10, 2.228), (15, 2.131), (19, 2.093), (29, 2.045), (999, 1.962)]
)
def test_quantiles_are_those_of_the_tables(freedom, t):
    assert t_quantile(freedom) == pytest.approx(t, rel=0.01)


def test_one_value_says_nothing_of_its_spread():
    assert mean_interval([3.0]).half_width == math.inf
    assert verdict_above([3.0]) is None
    assert verdict_below([3.0], 100.0) is None


def test_a_mean_is_above_a_bound_only_if_its_whole_interval_is():
    assert verdict_above([1.0, 1.1, 0.9]) is True
    assert verdict_above([-1.0, -1.1, -0.9]) is False
    assert verdict_above([1.0, -0.5, 0.4]) is None
    assert verdict_below([1.0, 1.1, 0.9], 2.0) is True
    assert verdict_below([1.0, 1.1, 0.9], 0.5) is False


def test_equal_means_that_the_interval_lies_inside_the_tolerance():
    assert verdict_within([1.0, 1.01, 0.99], 1.0, 0.1) is True
    assert verdict_within([1.3, 1.31, 1.29], 1.0, 0.1) is False
    assert verdict_within([1.0, 1.4, 0.6], 1.0, 0.1) is None  # the mean is right, and nobody knows it


def test_pairs_are_compared_seed_by_seed():
    a, b = [1.0, 5.0, 9.0], [1.2, 5.2, 9.3]  # far apart between seeds, always less within a seed
    assert verdict_less(a, b) is True
    assert verdict_less(b, a) is False
    assert verdict_less(a, [1.2, 4.0, 9.3]) is None


def test_no_worse_is_less_by_a_negative_margin():
    a, b = [1.05, 2.06, 3.04], [1.0, 2.0, 3.0]
    assert verdict_less(a, b) is False
    assert verdict_less(a, b, -0.1) is True
    assert verdict_less(a, b, -0.01) is False
    assert verdict_less([0.5, 1.5, 2.5], b, 0.4) is True
    assert verdict_less([0.5, 1.51, 2.49], b, 0.6) is False


def test_a_training_that_diverged_is_worse_than_any_other_but_only_if_all_did():
    assert verdict_less([1.0, 1.0], [NAN, NAN]) is True
    assert verdict_less([NAN, NAN], [1.0, 1.0]) is False
    assert verdict_less([1.0, 1.0], [NAN, 0.5]) is None
    assert verdict_less([NAN, 1.0], [NAN, 1.0]) is None


def test_verdicts_combine():
    assert (verdict_all([True, True]), verdict_all([True, None]), verdict_all([None, False])) == (
        True,
        None,
        False,
    )
    assert (verdict_any([False, True]), verdict_any([False, None]), verdict_any([False, False])) == (
        True,
        None,
        False,
    )


def test_intervals_are_said_for_people():
    assert mean_interval([1.0, 1.5, 2.0]).to_text() == "1.5 ± 1.2"
    assert mean_interval([1.0]).to_text() == "1"
    assert mean_interval([NAN, 1.0]).to_text() == "none"


def test_alike_asks_both_ways():
    assert prenorm.verdict_same([1.0, 1.01, 1.02], [1.0, 1.02, 1.01], 0.1) is True
    assert prenorm.verdict_same([1.0, 1.01, 1.02], [1.5, 1.51, 1.52], 0.1) is False
    assert prenorm.verdict_same([1.5, 1.51, 1.52], [1.0, 1.01, 1.02], 0.1) is False
    assert prenorm.verdict_same([1.0, 1.5, 0.5], [1.0, 1.01, 1.02], 0.1) is None
