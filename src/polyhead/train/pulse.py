"""Whether other processes live: each counts on in a store, and who waits for one looks at its count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from torch._C._distributed_c10d import Store

BEAT = 1.0  # seconds
PAUSE = 0.02  # seconds between two looks


class Pulse:
    """A count that a thread of this process raises; it stops with the process, also where that is only halted."""

    def __init__(self, store: Store, rank: int) -> None:
        self.store, self.rank, self.ended = store, rank, threading.Event()
        own = store.clone()  # type: ignore[attr-defined]  # so that neither waits for the other's questions
        self.thread = threading.Thread(target=self._beat, args=[own], name="pulse", daemon=True)
        self.thread.start()

    def listen(self, ranks: Iterable[int]) -> Callable[[], dict[int, float]]:
        """A question for how many seconds each of these ranks has been silent, from now on."""
        counts: dict[int, bytes] = {}
        heard = {rank: time.monotonic() for rank in ranks}

        def silent() -> dict[int, float]:
            now = time.monotonic()
            for rank in heard:
                if counts.get(rank) != (count := self._count(rank)):
                    counts[rank], heard[rank] = count, now
            return {rank: now - since for rank, since in heard.items()}

        return silent

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Those whose pulse does not beat: it takes three beats to know."""
        ranks = [rank for rank in ranks if rank != self.rank]
        before = [self._count(rank) for rank in ranks]
        time.sleep(3 * BEAT)
        return [rank for rank, count in zip(ranks, before, strict=True) if self._count(rank) == count]

    def stop(self) -> None:
        self.ended.set()
        self.thread.join(2 * BEAT)

    def _count(self, rank: int) -> bytes:
        key = f"pulse/{rank}"
        count: bytes = self.store.get(key) if self.store.check([key]) else b""
        return count

    def _beat(self, store: Store) -> None:
        count = 0
        try:
            while not self.ended.wait(BEAT if count else 0):
                count += 1
                store.set(f"pulse/{self.rank}", str(count))
        except RuntimeError:  # the store is gone: whoever asks it next says so
            return
