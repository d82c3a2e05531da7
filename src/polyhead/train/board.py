"""What processes write for each other to read, and a pulse there that tells who lives."""

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
ANSWER = 5.0  # seconds in which a board answers, for nobody has to be waited for
BEAT = 1.0  # seconds
INTERRUPTED = "interrupted"
PIECE = 2**20  # characters; a store takes 8 MiB at once


class Board:
    """A store of texts by name, which one of the processes keeps, or their launcher.

    Every question has an answer within seconds, or is a RuntimeError: who keeps the board may have died, or be halted,
    for which the store itself would wait without end.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def has(self, *keys: str) -> bool:
        """Whether all of them have been written."""
        return _answered(lambda: bool(self.store.check(list(keys))))

    def read(self, key: str) -> str:
        """What has been written."""

        def piece(number: int) -> str:
            return _answered(lambda: str(self.store.get(_named(key, number)), "utf-8"))

        pieces = [piece(0)]
        while len(pieces[-1]) == PIECE:
            pieces.append(piece(len(pieces)))
        return "".join(pieces)

    def write(self, key: str, text: str) -> None:
        """Behind the call all can read it."""

        def write(number: int) -> None:
            self.store.set(_named(key, number), text[number * PIECE :][:PIECE])
            self.store.check([key])  # to set alone waits for nothing

        # the first comes last, for it tells that all are there
        for number in reversed(range(len(text) // PIECE + 1)):
            _answered(partial(write, number))

    def erase(self, key: str) -> None:
        """Nobody will read it any more."""
        number = 0
        while _answered(partial(self.store.delete_key, _named(key, number))):
            number += 1


class Pulse:
    """A count on the board that a thread of this process raises; it stops with the process, also where that is halted.

    With every beat it asks whether another process wants this one interrupted.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.board, self.rank, self.ended = Board(store), rank, threading.Event()
        self.interrupted = False
        own = store.clone()  # type: ignore[attr-defined]  # so that neither waits for the other's questions
        self.thread = threading.Thread(target=self._beat, args=[own], name="pulse", daemon=True)
        self.thread.start()

    def listen(self, ranks: Iterable[int]) -> Callable[[], dict[int, float]]:
        """A question for how many seconds each of these ranks has been silent, from now on."""
        counts: dict[int, str] = {}
        heard = {rank: time.monotonic() for rank in ranks}

        def silent() -> dict[int, float]:
            for rank in heard:
                if counts.get(rank) != (count := self._count(rank)):
                    counts[rank], heard[rank] = count, time.monotonic()
            return {rank: time.monotonic() - since for rank, since in heard.items()}

        return silent

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Those whose pulse does not beat: it takes three beats to know."""
        ranks = [rank for rank in ranks if rank != self.rank]
        before = [self._count(rank) for rank in ranks]
        time.sleep(3 * BEAT)
        return [rank for rank, count in zip(ranks, before, strict=True) if self._count(rank) == count]

    def interrupt(self) -> None:
        """Every other process gets a SIGTERM, and more of them until it says the same."""
        self.interrupted = True
        self.board.write(INTERRUPTED, "")

    def stop(self) -> None:
        self.ended.set()
        self.thread.join(BEAT)

    def _count(self, rank: int) -> str:
        key = f"pulse/{rank}"
        return self.board.read(key) if self.board.has(key) else ""

    def _beat(self, store: Store) -> None:
        count = 0
        try:
            while not self.ended.wait(BEAT if count else 0):
                count += 1
                store.set(f"pulse/{self.rank}", str(count))
                if not self.interrupted and store.check([INTERRUPTED]) and not self.ended.is_set():
                    _thread.interrupt_main(signal.SIGTERM)  # nothing where that is not handled
        except RuntimeError:  # the board is gone: whoever asks it next says so
            return


def _named(key: str, number: int) -> str:
    """Of a piece; one that is shorter than the others is the last."""
    return f"{key}/{number}" if number else key


def _answered(question: Callable[[], T]) -> T:
    """Ask in a thread, which is left alone if there is no answer."""
    answers: queue.SimpleQueue[tuple[Any, RuntimeError | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except RuntimeError as error:
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer, error = answers.get(timeout=ANSWER)
    except queue.Empty:
        raise RuntimeError(f"no answer within {ANSWER:g} s") from None
    if error:
        raise error
    found: T = answer
    return found
