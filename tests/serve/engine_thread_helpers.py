"""Shared by the tests of engine_thread."""

import time
from collections import deque


class Loop:
    """An event loop that goes round when it is told to."""

    def __init__(self):
        self.waiting, self.most = deque(), 0

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, call, *given):
        self.waiting.append((call, given))
        self.most = max(self.most, len(self.waiting))

    call_soon = call_soon_threadsafe

    def go_round(self):
        for _ in range(len(self.waiting)):
            call, given = self.waiting.popleft()
            call(*given)


class Ear(list):
    put_nowait = list.append


def until(truth, seconds=10.0):
    end = time.monotonic() + seconds
    while not truth() and time.monotonic() < end:
        time.sleep(0.002)
    assert truth()
