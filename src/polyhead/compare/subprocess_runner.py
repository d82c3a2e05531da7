"""Run a trial in a subprocess: its memory is separate, and if it is killed the comparison continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyhead.train.signals import handle_signals


class StopHandler:
    """Signal handler that records Ctrl-C or SIGTERM and forwards it to the running trial."""

    def __init__(self) -> None:
        self.is_requested = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, frame: object) -> None:
        self.is_requested = True
        if self.child is None:
            raise KeyboardInterrupt
        self.child.send_signal(signal.SIGTERM)


@contextmanager
def handle_stop_signals() -> Iterator[StopHandler]:
    """Handle Ctrl-C and SIGTERM as stop requests within the context."""
    stop = StopHandler()
    with handle_signals(stop):
        yield stop


def run_subprocess(directory: Path, stop: StopHandler) -> int:
    """Train and measure the trial of a directory; return the exit code, negative if a signal killed it."""
    command = [sys.executable, "-m", "polyhead", "compare", "--cell", str(directory)]
    # user-defined parts are importable as in this process
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))}
    # in a new session Ctrl-C in the terminal reaches only this process, so the trial gets one signal
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as child:
        stop.child = child
        try:
            return child.wait()
        finally:
            stop.child = None
