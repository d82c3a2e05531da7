"""Verdicts from repeated measurements that respect their spread.

A verdict is True (held), False (did not hold) or None (undecided). It depends on which side of a bound the
whole 95 % confidence interval of a mean lies (Student's t over the repetitions, usually seeds).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, TypeVar

import torch

K = TypeVar("K", bound=Hashable)

TRIES, SHORT = 4, 0.05  # runs per round of a runner that takes less than ``SHORT`` seconds


def time_interleaved(runners: Mapping[K, Callable[[], object]], rounds: int = 5) -> dict[K, list[float]]:
    """Seconds of every round of every runner, interleaved, after one run each as warm-up.

    Interleaving makes the load of other programs affect all runners equally. A short runner runs several
    times per round and its best time counts, because a short run is either undisturbed or interrupted by
    something much longer.
    """
    tries = {name: TRIES if time_call(run) < SHORT else 1 for name, run in runners.items()}
    seconds: dict[K, list[float]] = {name: [] for name in runners}
    order = list(runners)
    for turn in range(rounds):
        # rotate the order: each runner finds the processor caches as the previous one left them
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            seconds[name].append(min(time_call(runners[name]) for _ in range(tries[name])))
    return seconds


def time_call(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one run."""
    start = clock()
    run()
    return clock() - start


def pick_clock() -> Callable[[], float]:
    """Clock that other programs disturb least: processor time if there is one thread, else wall time."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def median_times(times_by_name: Mapping[K, list[float]]) -> dict[K, float]:
    """Median time of each runner."""
    return {name: statistics.median(times) for name, times in times_by_name.items()}


def time_ratios(times: Sequence[float], base_times: Sequence[float]) -> list[float]:
    """Ratio of ``times`` to ``base_times``, round by round."""
    return [a / b for a, b in zip(times, base_times, strict=True)]


# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; beyond them 1.96 * (1 + 1.3 / dof) is within
# 1 % of it
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class MeanInterval(NamedTuple):
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def to_text(self) -> str:
        """``0.25 ± 0.013``: three digits of the mean, two of the half-width; the mean alone for one value."""
        if not math.isfinite(self.mean):
            return "none"
        if not math.isfinite(self.half_width):
            return format_digits(self.mean, 3)
        return f"{format_digits(self.mean, 3)} ± {format_digits(self.half_width, 2)}"


def format_digits(x: float, n: int) -> str:
    """A number with ``n`` digits; one with more before the point is an integer, up to a million."""
    return f"{x:.0f}" if 10**n - 0.5 <= abs(x) < 1e6 else f"{x:.{n}g}"


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """95 % confidence interval of the mean of some repetitions; infinite for a single one."""
    n, mean = len(values), fmean(values)
    if n < 2 or not math.isfinite(mean):
        return MeanInterval(mean, math.inf)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return MeanInterval(mean, t_quantile(n - 1) * deviation / math.sqrt(n))


def format_mean(values: Sequence[float]) -> str:
    """Format the mean of some repetitions and its interval."""
    return mean_interval(values).to_text()


def format_mean_percent(shares: Sequence[float]) -> str:
    """Format the mean of some fractions and its interval in percent."""
    return f"{format_mean([100 * share for share in shares])} %"


def t_quantile(dof: int) -> float:
    """Student's t for ``dof`` degrees of freedom, two-sided 95 %."""
    return _T95[dof - 1] if dof <= len(_T95) else 1.96 * (1 + 1.3 / dof)


def verdict_above(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Whether the mean is above the bound; undecided if the bound lies within the interval."""
    interval = mean_interval(values)
    return True if interval.low > bound else False if interval.high < bound else None


def verdict_below(values: Sequence[float], bound: float = 0.0) -> bool | None:
    """Whether the mean is below the bound."""
    return verdict_above([-v for v in values], -bound)


def verdict_within(values: Sequence[float], target: float, tolerance: float) -> bool | None:
    """Whether the mean is within ``tolerance`` of the target; held only if the whole interval is."""
    return verdict_all([verdict_above(values, target - tolerance), verdict_below(values, target + tolerance)])


def verdict_less(a: Sequence[float], b: Sequence[float], margin: float = 0.0) -> bool | None:
    """Whether a is less than b by more than ``margin``.

    Paired: a[i] and b[i] share their seed, and with it data and initial weights. A negative margin asks
    whether a is at most that much greater: no worse, within a tolerance. A non-finite value (a training that
    diverged) counts as worse than every other.
    """
    diverged_a, diverged_b = ([not math.isfinite(v) for v in side] for side in (a, b))
    if any(diverged_a + diverged_b):  # decided only if all of one side diverged and none of the other
        if all(diverged_b) and not any(diverged_a):
            return True
        return False if all(diverged_a) and not any(diverged_b) else None
    return verdict_below([x - y for x, y in zip(a, b, strict=True)], -margin)


def verdict_same(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool | None:
    """Whether two designs differ by no more than a tolerance in either direction."""
    worse = verdict_any([verdict_less(a, b, tolerance), verdict_less(b, a, tolerance)])
    return False if worse else verdict_all([verdict_less(a, b, -tolerance), verdict_less(b, a, -tolerance)])


def verdict_all(verdicts: Iterable[bool | None]) -> bool | None:
    """Held if all held, not held if one did not hold, else undecided, as without any."""
    items = list(verdicts)
    return False if False in items else None if None in items or not items else True


def verdict_any(verdicts: Iterable[bool | None]) -> bool | None:
    """Held if one held, not held if all did not hold, else undecided, as without any."""
    items = list(verdicts)
    return True if True in items else None if None in items or not items else False
