"""Key-value store and heartbeat shared by the processes of a run."""

from __future__ import annotations

import _thread
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

T = TypeVar("T")
ANSWER_TIMEOUT = 5.0  # seconds; the store answers at once, without waiting for other ranks
HEARTBEAT_INTERVAL = 1.0  # seconds
INTERRUPT_KEY = "interrupted"
CHUNK_CHARS = 2**20  # characters; a torch store accepts at most 8 MiB per value


class KeyValueStore:
    """Store of texts by key, hosted by one of the processes or by their launcher.

    Every request is answered within ``ANSWER_TIMEOUT`` seconds or raises a RuntimeError. torch's store (2.13)
    would wait forever for a host process that is stopped, whatever its own timeout: ``get``, ``wait``,
    ``check`` and ``compare_set`` do not return, and ``set`` returns although the host has no value yet.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def has(self, *keys: str) -> bool:
        """Whether all of these keys have been written."""
        return _call_with_timeout(lambda: bool(self.store.check(list(keys))))

    def read(self, key: str) -> str:
        """The text of a key."""

        def read_chunk(number: int) -> str:
            return _call_with_timeout(lambda: str(self.store.get(_chunk_key(key, number)), "utf-8"))

        chunks = [read_chunk(0)]
        while len(chunks[-1]) == CHUNK_CHARS:
            chunks.append(read_chunk(len(chunks)))
        return "".join(chunks)

    def write(self, key: str, text: str) -> None:
        """Write a text; when the call returns, all processes can read it."""

        def write_chunk(number: int) -> None:
            self.store.set(_chunk_key(key, number), text[number * CHUNK_CHARS :][:CHUNK_CHARS])
            self.store.check([key])  # wait until it is stored: ``set`` alone does not

        # chunk 0 is written last: it marks the text as complete
        for number in reversed(range(len(text) // CHUNK_CHARS + 1)):
            _call_with_timeout(partial(write_chunk, number))

    def erase(self, key: str) -> None:
        """Delete a key."""
        number = 0
        while _call_with_timeout(partial(self.store.delete_key, _chunk_key(key, number))):
            number += 1


class Heartbeat:
    """A thread that increments a counter in the store; it stops when the process dies or is stopped.

    At every beat it checks whether another process has requested an interrupt of all. torch's monitored
    barrier finds dead ranks only where all wait with a limit, and there is none for a long evaluation.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.kv_store, self.rank, self.stop_event = KeyValueStore(store), rank, threading.Event()
        self.interrupt_sent = False
        # a connection of its own, so that requests do not wait for each other
        own_store = store.clone()  # type: ignore[attr-defined]
        self.thread = threading.Thread(target=self._beat, args=[own_store], name="pulse", daemon=True)
        self.thread.start()

    def track_silence(self, ranks: Iterable[int]) -> Callable[[], dict[int, float]]:
        """Returns a function that gives the seconds since the last beat of each rank, counted from now."""
        counts: dict[int, str] = {}
        last_change = {rank: time.monotonic() for rank in ranks}

        def seconds_silent() -> dict[int, float]:
            for rank in last_change:
                if counts.get(rank) != (count := self._read_count(rank)):
                    counts[rank], last_change[rank] = count, time.monotonic()
            return {rank: time.monotonic() - changed_at for rank, changed_at in last_change.items()}

        return seconds_silent

    def find_dead_ranks(self, ranks: Iterable[int]) -> list[int]:
        """The ranks whose heartbeat does not change. Waits for three heartbeat intervals."""
        counts = {rank: self._read_count(rank) for rank in ranks if rank != self.rank}
        time.sleep(3 * HEARTBEAT_INTERVAL)
        return [rank for rank, count in counts.items() if self._read_count(rank) == count]

    def interrupt(self) -> None:
        """Send SIGTERM to every other process, at each beat until it calls ``interrupt`` as well."""
        self.interrupt_sent = True
        self.kv_store.write(INTERRUPT_KEY, "")

    def stop(self) -> None:
        self.stop_event.set()
        self.thread.join(HEARTBEAT_INTERVAL)

    def _read_count(self, rank: int) -> str:
        key = f"pulse/{rank}"
        return self.kv_store.read(key) if self.kv_store.has(key) else ""

    def _beat(self, store: Store) -> None:
        count = 0
        try:
            while not self.stop_event.wait(HEARTBEAT_INTERVAL if count else 0):
                count += 1
                store.set(f"pulse/{self.rank}", str(count))
                if not self.interrupt_sent and store.check([INTERRUPT_KEY]) and not self.stop_event.is_set():
                    _thread.interrupt_main(signal.SIGTERM)  # no effect without a handler
        except RuntimeError:  # the store is gone: the next request raises
            return


def _chunk_key(key: str, number: int) -> str:
    """Key of one chunk of a text; a chunk shorter than ``CHUNK_CHARS`` is the last."""
    return f"{key}/{number}" if number else key


def _call_with_timeout(request: Callable[[], T]) -> T:
    """Run a request in a thread, which is abandoned if it does not answer in time; then a RuntimeError."""
    answers: queue.SimpleQueue[tuple[Any, RuntimeError | None]] = queue.SimpleQueue()

    def run_request() -> None:
        try:
            answers.put((request(), None))
        except RuntimeError as error:
            answers.put((None, error))

    threading.Thread(target=run_request, daemon=True).start()
    try:
        answer, error = answers.get(timeout=ANSWER_TIMEOUT)
    except queue.Empty:
        raise RuntimeError(f"no answer within {ANSWER_TIMEOUT:g} s") from None
    if error:
        raise error
    result: T = answer
    return result
