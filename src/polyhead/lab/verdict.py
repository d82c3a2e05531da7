"""From repeated measurements to a verdict that claims no more than their spread allows.

A verdict is True (held), False (did not hold) or None (undecided). It looks at the 95 % confidence interval of a
mean (Student's t over the repetitions, most often seeds) and asks on which side of a bound the whole of it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

# Student's t, two-sided 95 %, by degrees of freedom from 1 on; beyond them 1.96 * (1 + 1.3 / freedom) is within 1 %
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Interval(NamedTuple):
    """A mean and how far its 95 % confidence interval reaches to either side."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def said(self) -> str:
        """``0.25 ± 0.013``: the mean with three digits, its reach with two; of one value alone the mean."""
        if not math.isfinite(self.mean):
            return "no number"
        if not math.isfinite(self.half):
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ± {self.half:.2g}"


def interval(values: Sequence[float]) -> Interval:
    """The 95 % confidence interval of the mean of some repetitions; one alone says nothing of its spread."""
    n, mean = len(values), fmean(values)
    if n < 2 or not math.isfinite(mean):
        return Interval(mean, math.inf)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Interval(mean, quantile(n - 1) * deviation / math.sqrt(n))


def said(values: Sequence[float]) -> str:
    """The mean of some repetitions and its interval, in words."""
    return interval(values).said()


def percent(shares: Sequence[float]) -> str:
    """The same of shares of one, in percent."""
    return f"{said([100 * share for share in shares])} %"


def quantile(freedom: int) -> float:
    """Student's t for so many degrees of freedom, two-sided 95 %."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 * (1 + 1.3 / freedom)


def above(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Is the mean above the bound? Undecided where the interval reaches across it."""
    found = interval(values)
    return True if found.low > bound else False if found.high < bound else None


def below(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Is the mean below the bound?"""
    return above([-v for v in values], -bound)


def within(values: Sequence[float], target: float, tolerance: float) -> bool | None:
    """Is the mean no further than ``tolerance`` from the target? To hold, all of the interval must lie there."""
    return all_of([above(values, target - tolerance), below(values, target + tolerance)])


def less(a: Sequence[float], b: Sequence[float], margin: float = 0.0) -> bool | None:
    """Is a less than b by more than ``margin``? Paired: a[i] and b[i] share their seed, and with it data and luck.

    A negative margin asks whether a is at most that much greater: no worse, to within a tolerance. A value that is
    no number (a training that diverged) counts as worse than every other.
    """
    if any(not math.isfinite(v) for v in (*a, *b)):
        return _lost(a, b)
    return below([x - y for x, y in zip(a, b, strict=True)], -margin)


def alike(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool | None:
    """Whether two designs differ by no more than a tolerance either way."""
    worse = any_of([less(a, b, tolerance), less(b, a, tolerance)])
    return False if worse else all_of([less(a, b, -tolerance), less(b, a, -tolerance)])


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """Held if all held, not if one did not, else undecided."""
    seen = list(verdicts)
    return False if False in seen else None if None in seen else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """Held if one held, not if none could, else undecided."""
    seen = list(verdicts)
    return True if True in seen else None if None in seen else False


def _lost(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """Where trainings diverged: decided only if all of one side did and none of the other."""
    lost_a, lost_b = ([not math.isfinite(v) for v in side] for side in (a, b))
    if all(lost_b) and not any(lost_a):
        return True
    return False if all(lost_a) and not any(lost_b) else None
