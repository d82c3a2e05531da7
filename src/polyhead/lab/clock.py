"""Times that can be compared: what is to be compared runs in turns, and the median is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

K = TypeVar("K", bound=Hashable)

TRIES, SHORT = 4, 0.05  # runs of a round, of what takes less than so many seconds


def race(runners: Mapping[K, Callable[[], object]], rounds: int = 5) -> dict[K, list[float]]:
    """Seconds of every round of every runner, taken in turns after one turn to warm up.

    In turns, so that another program's load falls on all of them alike; what is short runs several times a round,
    and the best counts, for a short run is either left alone or interrupted by something much longer.
    """
    tries = {name: TRIES if seconds(run) < SHORT else 1 for name, run in runners.items()}
    taken: dict[K, list[float]] = {name: [] for name in runners}
    order = list(runners)
    for turn in range(rounds):
        # who comes after whom changes, for what one leaves in the caches the next one finds
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            taken[name].append(min(seconds(runners[name]) for _ in range(tries[name])))
    return taken


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one run takes."""
    start = clock()
    run()
    return clock() - start


def quiet_clock() -> Callable[[], float]:
    """The clock that other programs disturb least: processor time where there is one thread, else the time of day."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def medians(taken: Mapping[K, list[float]]) -> dict[K, float]:
    """The median time of each runner."""
    return {name: statistics.median(times) for name, times in taken.items()}


def ratios(times: Sequence[float], to: Sequence[float]) -> list[float]:
    """How many times as long as the others these took, round by round."""
    return [a / b for a, b in zip(times, to, strict=True)]
