"""Comparable timings: the candidates run interleaved, and the median is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

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
