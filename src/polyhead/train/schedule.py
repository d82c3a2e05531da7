"""Learning-rate schedules: the factor f(t) on the peak rate at each step t = 1, 2, ...

w is ``warmup`` and n the number of steps; a linear warm-up is min(1, t / w).

Options:
  warmup: steps of the linear warm-up
  floor: rate at the end, as a share of the peak
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyhead.ranges import Count, Share
from polyhead.registry import SCHEDULE, Choice

Schedule = Callable[[int], float]


@SCHEDULE.register("constant")
def constant(d_model: int, steps: int, *, warmup: Count = 0) -> Schedule:
    """Linear warm-up, then the peak.

    Equation: f(t) = min(1, t / w)
    When: for short experiments, or with ``train.ema``
    """
    return lambda step: _warm(step, warmup)


@SCHEDULE.register("noam")
def noam(d_model: int, steps: int, *, warmup: Count = 4000) -> Schedule:
    """The schedule of the original Transformer: up linearly, then down with the root of the step.

    ``train.lr`` is its factor, not the peak: 1 or 2, not 0.001.

    Equation: f(t) = 1/√C · min(1/√t, t / w^1.5)
    Paper: Vaswani et al., 2017, eq. 3
    When: to follow the paper to the letter; inverse_sqrt is the same shape with the peak as its parameter
    """
    return lambda step: d_model**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)


@SCHEDULE.register("inverse_sqrt")
def inverse_sqrt(d_model: int, steps: int, *, warmup: Count = 4000, cooldown: Share = 0.0) -> Schedule:
    """Noam's shape with the peak as its parameter, and a linear fall to zero at the end if there is a cooldown.

    Without a cooldown it does not depend on n, so a run can be made longer later. The default.

    Equation: f(t) = min(t / w, √(w / t)) · min(1, (n - t + 1) / (cooldown · n))
    Paper: Vaswani et al., 2017, eq. 3, rescaled
    When: the number of steps is not certain yet
    Recipe: train: {schedule: {name: inverse_sqrt, warmup: 2000, cooldown: 0.2}}
    Options:
      cooldown: share of the steps that falls to zero; 0: none
    """

    def factor(step: int) -> float:
        left = min(1.0, (steps - step + 1) / (cooldown * steps)) if cooldown else 1.0
        return min(_warm(step, warmup), (max(warmup, 1) / step) ** 0.5) * left

    return factor


@SCHEDULE.register("cosine")
def cosine(d_model: int, steps: int, *, warmup: Count = 1000, floor: Share = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine down to the floor at the last step.

    n cannot be changed later.

    Equation: f(t) = floor + (1 - floor) (1 + cos(π (t - w) / (n - w))) / 2
    Paper: Loshchilov & Hutter, 2017
    When: the budget is known; it usually ends with the best loss for it
    """

    def factor(step: int) -> float:
        done = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
        return _warm(step, warmup) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))

    return factor


@SCHEDULE.register("wsd")
def wsd(
    d_model: int, steps: int, *, warmup: Count = 1000, decay: Share = 0.2, floor: Share = 0.0
) -> Schedule:
    """Warm up, stay at the peak, go down over the last share of the steps.

    The stable part is the same for every n.

    Equation: f(t) = floor + (1 - floor) (1 - √u),  u from 0 to 1 over the last ``decay`` share of the steps
    Paper: Hu et al., 2024; the root: Hägele et al., 2024
    When: one run shall be ended at several lengths
    Options:
      decay: share of the steps in which the rate goes down
    """

    def factor(step: int) -> float:
        done = min(1.0, max(0.0, (step - (1 - decay) * steps) / max(1.0, decay * steps)))
        return _warm(step, warmup) * (floor + (1 - floor) * (1 - done**0.5))

    return factor


def _warm(step: int, warmup: Count) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def late(choice: Choice, steps: int) -> str:
    """What is to be said of a schedule whose warm-up takes most of a training; nothing of another."""
    usual = SCHEDULE.options(choice.name).get("warmup", (int, 0))[1]
    warmup = choice.options.get("warmup", usual)
    if not isinstance(warmup, int) or 2 * warmup <= steps:
        return ""
    return f"the warm-up ({warmup:,} steps) is more than half of the {steps:,} steps"


def faint(choice: Choice, lr: float) -> str:
    """What is to be said where a peak was given to a schedule that takes a factor; nothing of another."""
    if choice.name != "noam" or lr >= 0.1:
        return ""
    return f"train.lr is {lr:g}, and schedule noam takes it times 1/√d_model: hardly anything is learned below 0.1; the paper has 1"
