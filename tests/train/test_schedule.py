import math

import pytest

from polyhead.core.choice import Choice
from polyhead.core.registry import SCHEDULE
from polyhead.train.schedule import warn_factor, warn_long_warmup

STEPS = [1, 2, 7, 10, 11, 40, 79, 80, 81, 99, 100]


def rates(name, **options) -> list[float]:
    factor = SCHEDULE.build(Choice(name, **options), 64, 100)
    return [factor(step) for step in STEPS]


def test_noam_is_equation_3_of_the_paper():
    expected = [64**-0.5 * min(s**-0.5, s * 10**-1.5) for s in STEPS]
    assert rates("noam", warmup=10) == pytest.approx(expected, rel=1e-12)


def test_inverse_sqrt_is_noam_relative_to_its_peak():
    noam = rates("noam", warmup=10)
    assert rates("inverse_sqrt", warmup=10) == pytest.approx([r / max(noam) for r in noam], rel=1e-12)


def test_inverse_sqrt_falls_to_zero_in_cooldown():
    factor = SCHEDULE.build(Choice("inverse_sqrt", warmup=10, cooldown=0.2), 64, 100)
    plain = SCHEDULE.build(Choice("inverse_sqrt", warmup=10), 64, 100)
    ratios = [factor(step) / plain(step) for step in (1, 50, 80, 81, 82, 91, 100)]
    assert ratios == pytest.approx([1, 1, 1, 1, 0.95, 0.5, 0.05], rel=1e-12)


def test_constant_stays_at_the_peak_after_warmup():
    assert rates("constant") == [1.0] * len(STEPS)
    assert rates("constant", warmup=10) == [0.1, 0.2, 0.7] + [1.0] * 8


def test_cosine_is_half_a_wave():
    expected = [
        s / 10 if s <= 10 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (s - 10) / 90)) for s in STEPS
    ]
    assert rates("cosine", warmup=10, floor=0.1) == pytest.approx(expected, rel=1e-12)
    assert expected[-1] == pytest.approx(0.1)


def test_wsd_is_constant_until_the_last_fifth():
    expected = [s / 10 if s <= 10 else 1.0 if s <= 80 else 1 - math.sqrt((s - 80) / 20) for s in STEPS]
    assert rates("wsd", warmup=10) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert rates("wsd", warmup=10, floor=0.2)[-1] == pytest.approx(0.2)


@pytest.mark.parametrize("name", SCHEDULE.names())
def test_factors_are_finite_and_positive_from_step_1(name):
    for steps in (1, 2, 5000):
        factor = SCHEDULE.build(Choice(name), 64, steps)
        assert all(0 <= factor(step) <= 1 for step in range(1, min(steps, 50) + 1))
        assert factor(1) > 0 or steps == 1


@pytest.mark.parametrize("name", SCHEDULE.names())
def test_warmup_of_half_the_steps_is_a_warning(name):
    """Also the default warm-up: up to half of the steps its rate is below the peak, or just reached it."""
    for options in ({}, {"warmup": 30}):
        choice = Choice(name, **options)
        factor = SCHEDULE.build(choice, 64, 10**6)
        peak = max(range(1, 10_000), key=lambda step: (factor(step), -step))
        warning = warn_long_warmup(choice, max(1, 2 * peak - 1))
        if options or SCHEDULE.options(name)["warmup"][1]:
            assert warning == f"the warm-up ({peak:,} steps) is more than half of the {2 * peak - 1:,} steps"
        assert warn_long_warmup(choice, 2 * peak) == ""


@pytest.mark.parametrize("name", SCHEDULE.names())
def test_rate_made_tiny_by_schedule_is_a_warning(name):
    """The default of train.lr is a peak; the same with Noam's schedule is 7e-7 at most."""
    highest = 0.001 * max(map(SCHEDULE.build(Choice(name), 512, 10**6), range(1, 10_000)))
    assert bool(warn_factor(Choice(name), 0.001)) == (highest < 1e-5)
    assert warn_factor(Choice(name), 1.0) == ""
