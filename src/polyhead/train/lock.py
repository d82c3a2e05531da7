"""Exclusive lock on a run directory: a lock file that names the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from polyhead.core.atomic_io import (
    is_process_alive,
    process_start_time,
    read_regular_file,
    remove,
    replace_file,
)
from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json

LOCK_FILE = "run.lock"


class RunLock:
    """``with RunLock(directory):`` locks the directory; a UserError if a live process holds the lock."""

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory) / LOCK_FILE
        self._content = b""

    def __enter__(self) -> RunLock:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
        content = json.dumps(owner).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock_directory(self.path.parent):
                if os.path.lexists(self.path):
                    _refuse_if_held(self.path)
                replace_file(self.path, content)
        except OSError as error:
            raise UserError(
                f"cannot lock {self.path.parent}: {error.strerror}; choose another directory for the run: "
                "out=..."
            ) from error
        self._content = content
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the directory may have been deleted: no error at the end of a successful run
        with contextlib.suppress(OSError, UserError), _lock_directory(self.path.parent):
            # a forked child that leaves the block, and a lock file replaced by hand, do not remove it
            is_ours = self.path.exists() and read_regular_file(self.path, max_bytes=4096) == self._content
            if is_ours and json.loads(self._content)["pid"] == os.getpid():
                remove(self.path)


def _refuse_if_held(path: Path) -> None:
    """Raise a UserError if a live process holds the lock.

    A lock whose holder has ended, or that is unreadable (truncated by a crash of the machine), is stale.
    """
    content = read_regular_file(path, max_bytes=4096)
    try:
        holder = decode_json(content, path)
        pid, host, start = int(holder["pid"]), str(holder["host"]), int(holder["start"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return
    if host != socket.gethostname():
        raise UserError(
            f"{path.parent} is in use by process {pid} on {host}; whether that still runs cannot be checked "
            f"from this host: if it does not, delete {path}"
        )
    if is_process_alive(pid, start):
        raise UserError(f"{path.parent} is in use by process {pid}; stop it, or choose another directory")


@contextlib.contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Serialise checks and changes of the lock file (flock); the kernel releases it when the process dies."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without flock: only the check is left
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
