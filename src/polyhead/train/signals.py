"""Ctrl-C and SIGTERM: as a question to ask between two steps, or as the end of work that can be done again. No torch here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polyhead.core.i18n import tr


@contextmanager
def stop_on_signal(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """A question whether Ctrl-C or SIGTERM has come; a second one ends the program at once.

    Python tells signals to its main thread alone: in another one the answer is always no.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def catch(number: int, frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        say(tr("stopping after this step; once more stops at once, without saving"))

    with handled(catch):
        yield lambda: bool(caught)


@contextmanager
def end_on_signal() -> Iterator[None]:
    """Ctrl-C or SIGTERM raises KeyboardInterrupt at once: for work of which nothing is lost. Main thread alone, as above."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled(end):
        yield


@contextmanager
def handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Both signals go to the handler, and afterwards to whom they went before."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def end_with(pipe: int) -> None:
    """Ask this process to save and end when whoever holds the other end of a pipe is gone."""

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
