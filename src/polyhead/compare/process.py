"""A cell in a process of its own: its memory is its own, and whatever kills it does not kill the comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead.train.signals import handled


class Stop:
    """Whether Ctrl-C or SIGTERM has come; each is passed on to the cell that is at work."""

    def __init__(self) -> None:
        self.asked = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: object) -> None:
        self.asked = True
        if self.child is None:
            raise KeyboardInterrupt
        self.child.send_signal(signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Signals as a wish to stop, for as long as the context lasts."""
    stop = Stop()
    with handled(stop):
        yield stop


def run_process(directory: Path, stop: Stop) -> int:
    """Train and measure the cell of a directory; the exit code, negative for the signal that killed it."""
    command = [sys.executable, "-m", "polyhead", "compare", "--cell", str(directory)]
    # parts of the user's own are found where they are found here
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))}
    # in a session of its own the terminal's Ctrl-C comes to us alone, and the cell hears of it once
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as child:
        stop.child = child
        try:
            return child.wait()
        finally:
            stop.child = None
