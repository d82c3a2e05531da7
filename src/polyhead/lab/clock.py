"""Times that can be compared: what is to be compared runs in turns, and the median is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def race(runners: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds of every round of every runner, taken in turns after one turn to warm up.

    In turns, so that another program's load falls on all of them alike.
    """
    for run in runners.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return taken


def medians(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """The middle one of each."""
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def ratios(taken: Mapping[str, list[float]], name: str, to: str) -> list[float]:
    """How many times as long as ``to`` did ``name`` take, round by round."""
    return [a / b for a, b in zip(taken[name], taken[to], strict=True)]
