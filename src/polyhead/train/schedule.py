"""Learning-rate schedules: the factor on the peak rate at each step, from 1 on."""

from __future__ import annotations

import math
from collections.abc import Callable

from polyhead.registry import SCHEDULE

Schedule = Callable[[int], float]


@SCHEDULE.register("constant")
def constant(d_model: int, steps: int, *, warmup: int = 0) -> Schedule:
    """Linear warm-up, then the peak."""
    return lambda step: _warm(step, warmup)


@SCHEDULE.register("noam")
def noam(d_model: int, steps: int, *, warmup: int = 4000) -> Schedule:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5): the paper's; lr is its factor (Vaswani et al., 2017, eq. 3)."""
    return lambda step: d_model**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)


@SCHEDULE.register("inverse_sqrt")
def inverse_sqrt(d_model: int, steps: int, *, warmup: int = 4000, cooldown: float = 0.0) -> Schedule:
    """Linear warm-up to the peak, then peak * sqrt(warmup / step): noam with the peak as its parameter.

    Over the last ``cooldown`` share of the steps it also falls linearly to zero.
    """

    def factor(step: int) -> float:
        left = min(1.0, (steps - step + 1) / (cooldown * steps)) if cooldown else 1.0
        return min(_warm(step, warmup), (max(warmup, 1) / step) ** 0.5) * left

    return factor


@SCHEDULE.register("cosine")
def cosine(d_model: int, steps: int, *, warmup: int = 1000, floor: float = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine down to floor * peak at the last step (Loshchilov & Hutter, 2017)."""

    def factor(step: int) -> float:
        done = min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))
        return _warm(step, warmup) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))

    return factor


@SCHEDULE.register("wsd")
def wsd(d_model: int, steps: int, *, warmup: int = 1000, decay: float = 0.2, floor: float = 0.0) -> Schedule:
    """Warm up, stay at the peak, go down over the last ``decay`` share of the steps (Hu et al., 2024);
    down as 1 - sqrt, which Hägele et al. (2024) found best."""

    def factor(step: int) -> float:
        done = min(1.0, max(0.0, (step - (1 - decay) * steps) / max(1.0, decay * steps)))
        return _warm(step, warmup) * (floor + (1 - floor) * (1 - done**0.5))

    return factor


def _warm(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0
