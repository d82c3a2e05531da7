"""Every schedule against its formula, written out by hand."""

from __future__ import annotations

import math

import pytest

from polyhead.core.choice import Choice
from polyhead.core.registry import SCHEDULE
from polyhead.train.schedule import warn_factor, warn_long_warmup

STEPS = [1, 2, 7, 10, 11, 40, 79, 80, 81, 99, 100]


def rates(name: str, **options: float) -> list[float]:
    factor = SCHEDULE.build(Choice(name, **options), 64, 100)
    return [factor(step) for step in STEPS]


def test_noam_is_equation_3_of_the_paper() -> None:
    wanted = [64**-0.5 * min(s**-0.5, s * 10**-1.5) for s in STEPS]
    assert rates("noam", warmup=10) == pytest.approx(wanted, rel=1e-12)


def test_inverse_sqrt_is_noam_with_its_peak_given() -> None:
    noam = rates("noam", warmup=10)
    peak = max(noam)
    assert rates("inverse_sqrt", warmup=10) == pytest.approx([r / peak for r in noam], rel=1e-12)


def test_inverse_sqrt_falls_to_zero_over_its_cooldown() -> None:
    factor = SCHEDULE.build(Choice("inverse_sqrt", warmup=10, cooldown=0.2), 64, 100)
    plain = SCHEDULE.build(Choice("inverse_sqrt", warmup=10), 64, 100)
    shares = [factor(step) / plain(step) for step in (1, 50, 80, 81, 82, 91, 100)]
    assert shares == pytest.approx([1, 1, 1, 1, 0.95, 0.5, 0.05], rel=1e-12)


def test_constant_stays_at_the_peak_after_warming_up() -> None:
    assert rates("constant") == [1.0] * len(STEPS)
    assert rates("constant", warmup=10) == [0.1, 0.2, 0.7] + [1.0] * 8


def test_cosine_goes_down_half_a_wave() -> None:
    wanted = [s / 10 if s <= 10 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (s - 10) / 90)) for s in STEPS]
    assert rates("cosine", warmup=10, floor=0.1) == pytest.approx(wanted, rel=1e-12)
    assert rates("cosine", warmup=10, floor=0.1)[-1] == pytest.approx(0.1)


def test_wsd_stays_until_the_last_fifth() -> None:
    wanted = [s / 10 if s <= 10 else 1.0 if s <= 80 else 1 - math.sqrt((s - 80) / 20) for s in STEPS]
    assert rates("wsd", warmup=10) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert rates("wsd", warmup=10, floor=0.2)[-1] == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["constant", "cosine", "inverse_sqrt", "noam", "wsd"])
def test_every_schedule_is_finite_and_positive_from_the_first_step(name: str) -> None:
    for steps in (1, 2, 5000):
        factor = SCHEDULE.build(Choice(name), 64, steps)
        assert all(
            0 <= factor(step) <= 1 and math.isfinite(factor(step)) for step in range(1, min(steps, 50) + 1)
        )
        assert factor(1) > 0 or steps == 1


@pytest.mark.parametrize("name", SCHEDULE.names())
def test_a_warm_up_of_most_of_a_training_is_told(name: str) -> None:
    """Also where nothing is said of it: half of the way its rate is not yet the peak, or just is."""
    for options in ({}, {"warmup": 30}):
        factor = SCHEDULE.build(Choice(name, **options), 64, 10**6)
        peak = max(range(1, 10_000), key=lambda step: (factor(step), -step))
        told = warn_long_warmup(Choice(name, **options), max(1, 2 * peak - 1))
        if options or SCHEDULE.options(name)["warmup"][1]:
            assert told == f"the warm-up ({peak:,} steps) is more than half of the {2 * peak - 1:,} steps"
        assert warn_long_warmup(Choice(name, **options), 2 * peak) == ""


@pytest.mark.parametrize("name", SCHEDULE.names())
def test_a_rate_that_a_schedule_makes_tiny_is_told(name: str) -> None:
    """The default of train.lr is a peak; the same under Noam's schedule is 7e-7 at best."""
    highest = 0.001 * max(map(SCHEDULE.build(Choice(name), 512, 10**6), range(1, 10_000)))
    assert bool(warn_factor(Choice(name), 0.001)) == (highest < 1e-5)
    assert warn_factor(Choice(name), 1.0) == ""
