"""Decode requests with several engines at once, each in a thread of its own.

Kernels of one row of the batch do not depend on the others, so that a row is the same in any engine. Threads
that wait for each other after every instruction of a step lose more than engines that read the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread

import torch

from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Decoder, Request
from polyhead.kernels.build_extension import load_kernels

MAX_WORKERS, MIN_WORKER_ROWS = 4, 16  # rows of a worker, below which sharing the weights is faster


def count_workers(model: Decoder, rows: int) -> int:
    """Number of engines for so many rows: 1 unless all of a step runs in our kernels."""
    if model.decode_greedy is None:
        return 1
    return max(1, min(torch.get_num_threads(), rows // MIN_WORKER_ROWS, MAX_WORKERS))


class Workers:
    """Engines that decode the requests submitted to them in turn."""

    def __init__(self, make_engine: Callable[[], Engine], n: int) -> None:
        self.engines = [make_engine() for _ in range(n)]
        self.requests: list[list[tuple[int, Request]]] = [[] for _ in range(n)]
        self.n_submitted = 0

    def add(self, number: int, submit: Callable[[Engine], Request]) -> None:
        """Submit a request to the next engine."""
        worker = self.n_submitted % len(self.engines)
        self.requests[worker].append((number, submit(self.engines[worker])))
        self.n_submitted += 1

    def run(self) -> Iterator[tuple[int, Request]]:
        """Yield the requests, with their numbers, as soon as they finish."""
        if len(self.engines) == 1:
            yield from _run_engine(self.engines[0], self.requests[0], Event())
            return
        results: SimpleQueue[tuple[int, Request] | BaseException | None] = SimpleQueue()
        stop_event, n_threads = Event(), max(1, torch.get_num_threads() // len(self.engines))

        def work(engine: Engine, requests: list[tuple[int, Request]]) -> None:
            try:
                torch.get_num_threads()  # torch sets its default at the first call of a thread
                kernels = load_kernels()
                if kernels is not None:
                    kernels.limit_threads(n_threads)
                for item in _run_engine(engine, requests, stop_event):
                    results.put(item)
                results.put(None)
            except BaseException as error:  # raised in the thread that waits
                results.put(error)

        threads = [
            Thread(target=work, args=pair, daemon=True)
            for pair in zip(self.engines, self.requests, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            n_running = len(threads)
            while n_running:
                item = results.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    n_running -= 1
                else:
                    yield item
        finally:
            stop_event.set()
            for thread in threads:
                thread.join()


def _run_engine(
    engine: Engine, requests: list[tuple[int, Request]], stop_event: Event
) -> Iterator[tuple[int, Request]]:
    running = list(requests)
    while running and not stop_event.is_set():
        engine.step()
        finished = [item for item in running if item[1].finish_status is not None]
        if finished:
            running = [item for item in running if item[1].finish_status is None]
            yield from finished
