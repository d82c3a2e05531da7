"""Handlers of Ctrl-C and SIGTERM: a flag to check between steps, or KeyboardInterrupt; no torch import."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polyhead.core.i18n import tr


@contextmanager
def stop_on_signal(info: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C or SIGTERM was received.

    A second signal ends the program at once. Python delivers signals to the main thread only: in another
    thread the function always returns False.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def catch_signal(signum: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signum)
        info(tr("stopping after this step; interrupt again to stop immediately, without saving"))

    with handle_signals(catch_signal):
        yield lambda: bool(received)


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C or SIGTERM, for work that can be repeated. Main thread only."""

    def raise_interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handle_signals(raise_interrupt):
        yield


@contextmanager
def handle_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Install a handler for SIGINT and SIGTERM; restore the old handlers on exit."""
    old_handlers = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)


def die_with(pipe: int) -> None:
    """Send SIGTERM to this process when the other end of the pipe ``pipe`` is closed."""

    def watch_pipe() -> None:
        while os.read(pipe, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_pipe, daemon=True).start()
