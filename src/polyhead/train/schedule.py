"""Learning rate schedules: the factor f(t) on the peak rate at each step t = 1, 2, ...

w is ``warmup`` and n the number of steps; a linear warm-up is min(1, t / w).

Options:
  warmup: steps of the linear warm-up
  floor: final learning rate, as a share of the peak
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyhead.core.choice import Choice
from polyhead.core.option_types import Fraction, NonNegativeInt
from polyhead.core.registry import SCHEDULE

Schedule = Callable[[int], float]


@SCHEDULE.register("constant")
def constant_schedule(d_model: int, steps: int, *, warmup: NonNegativeInt = 0) -> Schedule:
    """Linear warm-up, then constant at the peak.

    Equation: f(t) = min(1, t / w)
    When: for short experiments, or with ``train.ema``
    """
    return lambda step: _warmup_factor(step, warmup)


@SCHEDULE.register("noam")
def noam_schedule(d_model: int, steps: int, *, warmup: NonNegativeInt = 4000) -> Schedule:
    """The schedule of the original Transformer: linear warm-up, then decay with the inverse root of the step.

    ``train.lr`` is a factor, not the peak: 1 or 2, not 0.001.

    Equation: f(t) = 1/√C · min(1/√t, t / w^1.5)
    Paper: Vaswani et al., 2017, eq. 3
    When: to reproduce the paper exactly; inverse_sqrt is the same shape with the peak as its parameter
    """
    return lambda step: d_model**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)


@SCHEDULE.register("inverse_sqrt")
def inverse_sqrt_schedule(
    d_model: int, steps: int, *, warmup: NonNegativeInt = 4000, cooldown: Fraction = 0.0
) -> Schedule:
    """Noam's shape with the peak as its parameter, and an optional linear cooldown to zero at the end.

    Without a cooldown it does not depend on n, so a run can be extended later. The default.

    Equation: f(t) = min(t / w, √(w / t)) · min(1, (n - t + 1) / (cooldown · n))
    Paper: Vaswani et al., 2017, eq. 3, rescaled
    When: the number of steps is not fixed yet
    Recipe: train: {schedule: {name: inverse_sqrt, warmup: 2000, cooldown: 0.2}}
    Options:
      cooldown: share of the steps with linear decay to zero; 0: none
    """

    def factor(step: int) -> float:
        cooldown_factor = min(1.0, (steps - step + 1) / (cooldown * steps)) if cooldown else 1.0
        return min(_warmup_factor(step, warmup), (max(warmup, 1) / step) ** 0.5) * cooldown_factor

    return factor


@SCHEDULE.register("cosine")
def cosine_schedule(
    d_model: int, steps: int, *, warmup: NonNegativeInt = 1000, floor: Fraction = 0.0
) -> Schedule:
    """Linear warm-up, then cosine decay to the floor at the last step.

    n cannot be changed later.

    Equation: f(t) = floor + (1 - floor) (1 + cos(π (t - w) / (n - w))) / 2
    Paper: Loshchilov & Hutter, 2017
    When: the number of steps is known; usually the best final loss for it
    """

    def factor(step: int) -> float:
        progress = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
        return _warmup_factor(step, warmup) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))

    return factor


@SCHEDULE.register("wsd")
def wsd_schedule(
    d_model: int, steps: int, *, warmup: NonNegativeInt = 1000, decay: Fraction = 0.2, floor: Fraction = 0.0
) -> Schedule:
    """Warmup-stable-decay: linear warm-up, constant at the peak, decay over the last share of the steps.

    The stable part is the same for every n.

    Equation: f(t) = floor + (1 - floor) (1 - √u),  u from 0 to 1 over the last ``decay`` share of the steps
    Paper: Hu et al., 2024; the root: Hägele et al., 2024
    When: to finish one run at several lengths
    Options:
      decay: share of the steps in which the rate decays
    """

    def factor(step: int) -> float:
        progress = min(1.0, max(0.0, (step - (1 - decay) * steps) / max(1.0, decay * steps)))
        return _warmup_factor(step, warmup) * (floor + (1 - floor) * (1 - progress**0.5))

    return factor


def _warmup_factor(step: int, warmup: NonNegativeInt) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def warn_long_warmup(choice: Choice, steps: int) -> str:
    """Warning if the warm-up covers more than half of the steps, else ''."""
    default = SCHEDULE.options(choice.name).get("warmup", (int, 0))[1]
    warmup = choice.options.get("warmup", default)
    if not isinstance(warmup, int) or 2 * warmup <= steps:
        return ""
    return f"the warm-up ({warmup:,} steps) is more than half of the {steps:,} steps"


def warn_factor(choice: Choice, lr: float) -> str:
    """Warning if ``train.lr`` looks like a peak rate but the schedule takes a factor (noam), else ''."""
    if choice.name != "noam" or lr >= 0.1:
        return ""
    return (
        f"train.lr is {lr:g}, and schedule noam multiplies it by 1/√d_model: values below 0.1 are too "
        "small; the paper has 1"
    )
