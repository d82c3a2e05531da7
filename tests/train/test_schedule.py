import math

import pytest

from polyhead import Choice
from polyhead.core.registry import SCHEDULE
from polyhead.train.schedule import warn_factor, warn_long_warmup

STEPS = [1, 2, 7, 10, 11, 40, 79, 80, 81, 99, 100]
WARMUP = [s / 10 for s in STEPS if s <= 10]
LATER_STEPS = [s for s in STEPS if s > 10]
NOAM = [min(s**-0.5, s * 10**-1.5) for s in STEPS]
COSINE = [0.5 * (1 + math.cos(math.pi * (s - 10) / 90)) for s in LATER_STEPS]
COOLDOWN = [1 if s <= 80 else 1 - (s - 81) / 20 for s in STEPS]
WSD = [1 if s <= 80 else 1 - math.sqrt((s - 80) / 20) for s in LATER_STEPS]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("noam", {}, [64**-0.5 * rate for rate in NOAM]),  # equation 3 of the paper
        ("inverse_sqrt", {}, [rate / max(NOAM) for rate in NOAM]),
        ("inverse_sqrt", {"cooldown": 0.2}, [a / max(NOAM) * b for a, b in zip(NOAM, COOLDOWN, strict=True)]),
        ("constant", {"warmup": 0}, [1] * len(STEPS)),
        ("constant", {}, WARMUP + [1] * len(LATER_STEPS)),
        ("cosine", {"floor": 0.1}, WARMUP + [0.1 + 0.9 * rate for rate in COSINE]),
        ("wsd", {}, WARMUP + WSD),
        ("wsd", {"floor": 0.2}, WARMUP + [0.2 + 0.8 * rate for rate in WSD]),
    ],
)
def test_schedule_follows_its_formula(name, options, expected):
    factor = SCHEDULE.build(Choice(name, **{"warmup": 10} | options), 64, 100)
    assert [factor(step) for step in STEPS] == pytest.approx(expected, rel=1e-12, abs=1e-12)


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
