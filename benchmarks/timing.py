"""Paired timing: the contestants take turns, so that a slow minute of the machine slows them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, in turn: name -> one figure a round."""
    for _ in range(warmup):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slower: list[float], faster: list[float]) -> float:
    """How many times faster: the median of the ratios, pair by pair."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def table(rows: list[list[str]]) -> str:
    """Rows as a Markdown table; the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
