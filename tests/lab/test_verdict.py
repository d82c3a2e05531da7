from __future__ import annotations

import math

import pytest

from polyhead.lab.verdict import above, all_of, any_of, below, interval, less, quantile, within

NAN = math.nan


def test_the_interval_is_students():
    # Student (1908), table of additional hours of sleep (drug 2 less drug 1): mean 1.58, 95 % interval 0.70 to 2.46
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    found = interval(hours)
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.70, 2.46), abs=0.005)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (10, 2.228), (15, 2.131), (19, 2.093), (29, 2.045), (999, 1.962)]
)
def test_quantiles_are_those_of_the_tables(freedom, t):
    assert quantile(freedom) == pytest.approx(t, rel=0.01)


def test_one_value_says_nothing_of_its_spread():
    assert interval([3.0]).half == math.inf
    assert above([3.0]) is None
    assert below([3.0], 100.0) is None


def test_a_mean_is_above_a_bound_only_if_its_whole_interval_is():
    assert above([1.0, 1.1, 0.9]) is True
    assert above([-1.0, -1.1, -0.9]) is False
    assert above([1.0, -0.5, 0.4]) is None
    assert below([1.0, 1.1, 0.9], 2.0) is True
    assert below([1.0, 1.1, 0.9], 0.5) is False


def test_equal_means_that_the_interval_lies_inside_the_tolerance():
    assert within([1.0, 1.01, 0.99], 1.0, 0.1) is True
    assert within([1.3, 1.31, 1.29], 1.0, 0.1) is False
    assert within([1.0, 1.4, 0.6], 1.0, 0.1) is None  # the mean is right, and nobody knows it


def test_pairs_are_compared_seed_by_seed():
    a, b = [1.0, 5.0, 9.0], [1.2, 5.2, 9.3]  # far apart between seeds, always less within a seed
    assert less(a, b) is True
    assert less(b, a) is False
    assert less(a, [1.2, 4.0, 9.3]) is None


def test_no_worse_is_less_by_a_negative_margin():
    a, b = [1.05, 2.06, 3.04], [1.0, 2.0, 3.0]
    assert less(a, b) is False
    assert less(a, b, -0.1) is True
    assert less(a, b, -0.01) is False
    assert less([0.5, 1.5, 2.5], b, 0.4) is True
    assert less([0.5, 1.51, 2.49], b, 0.6) is False


def test_a_training_that_diverged_is_worse_than_any_other_but_only_if_all_did():
    assert less([1.0, 1.0], [NAN, NAN]) is True
    assert less([NAN, NAN], [1.0, 1.0]) is False
    assert less([1.0, 1.0], [NAN, 0.5]) is None
    assert less([NAN, 1.0], [NAN, 1.0]) is None


def test_verdicts_combine():
    assert (all_of([True, True]), all_of([True, None]), all_of([None, False])) == (True, None, False)
    assert (any_of([False, True]), any_of([False, None]), any_of([False, False])) == (True, None, False)


def test_intervals_are_said_for_people():
    assert interval([1.0, 1.5, 2.0]).said() == "1.5 ± 1.2"
    assert interval([1.0]).said() == "1"
    assert interval([NAN, 1.0]).said() == "no number"
