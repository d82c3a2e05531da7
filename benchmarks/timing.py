"""Paired timing: the contestants take turns, so that a slow minute of the machine slows them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call, in turn: name -> one figure a round. ``time.process_time`` does not count what others run."""
    for _ in range(warmup):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


@contextmanager
def apart(
    builders: Mapping[str, Callable[[Any], Callable[[], object]]], options: Any
) -> Iterator[dict[str, Callable[[], Any]]]:
    """Each contestant in a process of its own, as its users run it: a builder makes there what a call runs."""
    context = get_context("spawn")
    calls: dict[str, Callable[[], Any]] = {}
    processes = []
    for name, builder in builders.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(builder, options, theirs), daemon=True)
        process.start()
        theirs.close()  # so that a process that fails ends the wait
        processes.append(process)
        assert ours.recv() == "ready"
        calls[name] = lambda ours=ours: (ours.send("go"), ours.recv())[1]  # type: ignore[misc]
    try:
        yield calls
    finally:
        for process in processes:
            process.kill()


def _serve(builder: Callable[[Any], Callable[[], object]], options: Any, pipe: Connection) -> None:
    run = builder(options)
    pipe.send("ready")
    while pipe.recv():
        pipe.send(run())


def ratio(slower: list[float], faster: list[float]) -> float:
    """How many times faster: the median of the ratios, pair by pair."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))


def table(rows: list[list[str]]) -> str:
    """Rows as a Markdown table; the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
