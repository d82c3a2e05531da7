"""One writer to a run directory: a lock file that says who holds it and outlives no one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from polyhead.alive import alive, start_time
from polyhead.errors import UserError
from polyhead.files import read_regular, remove, replace_file

NAME = "run.lock"


class RunLock:
    """``with RunLock(directory):`` holds the directory; a second one is refused while the first lives."""

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory) / NAME
        self._mine = b""

    def __enter__(self) -> RunLock:
        me = {"pid": os.getpid(), "host": socket.gethostname(), "start": start_time(os.getpid())}
        mine = json.dumps(me).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _guard(self.path.parent):
                if os.path.lexists(self.path):
                    _refuse_if_held(self.path)
                replace_file(self.path, mine)
        except OSError as error:
            raise UserError(
                f"cannot lock {self.path.parent}: {error.strerror}; choose another directory for the run: out=..."
            ) from error
        self._mine = mine
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # an end without an error is not spoilt by a directory that someone has deleted
        with contextlib.suppress(OSError, UserError), _guard(self.path.parent):
            # a forked child that leaves the block, or a lock taken over by hand: not ours to remove
            still_there = self.path.exists() and read_regular(self.path, most=4096) == self._mine
            if still_there and json.loads(self._mine)["pid"] == os.getpid():
                remove(self.path)


def _refuse_if_held(path: Path) -> None:
    """A lock whose holder is gone, or which nobody can read (torn by a crash of the machine), is stale."""
    try:
        holder = json.loads(read_regular(path, most=4096))
        pid, host, start = int(holder["pid"]), str(holder["host"]), int(holder["start"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        return
    if host != socket.gethostname():
        raise UserError(
            f"{path.parent} is in use by process {pid} on {host}; from here it cannot be seen whether "
            f"that still runs: if it does not, delete {path}"
        )
    if alive(pid, start):
        raise UserError(f"{path.parent} is in use by process {pid}; stop it, or choose another directory")


@contextlib.contextmanager
def _guard(directory: Path) -> Iterator[None]:
    """One process at a time looks at the lock file and changes it; the kernel lets go if that one dies."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the check alone must do
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
