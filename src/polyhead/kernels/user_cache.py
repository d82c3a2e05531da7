"""The user's cache directory: only what this user alone can write is read or loaded from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from polyhead.core.atomic_io import fsync_path, read_regular_file
from polyhead.core.errors import UserError

TEMPORARY_PREFIX = "new-"


def user_cache_dir() -> Path:
    """The user's cache directory of this package, which may not exist; a RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyhead"


def make_cache_dir(*names: str) -> Path:
    """The user's cache directory, or one within it, made if it is missing.

    A PermissionError if it belongs to another user, or others may write it: they could replace its files.
    """
    directory = user_cache_dir()
    for path in (directory, *(directory.joinpath(*names[: i + 1]) for i in range(len(names)))):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise a PermissionError unless a path, and what it links to, belong to this user, the only writer."""
    if not hasattr(os, "getuid"):  # a system without owners in numbers
        return
    for status in (path.lstat(), path.stat()):
        if status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to user {status.st_uid}; expected user {os.getuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by other users; to correct it: chmod go-w {path}")


def read_private(path: Path, max_bytes: int) -> bytes | None:
    """The content of a file; None if it is missing, longer, no regular file, or not private."""
    try:
        check_private(path)
        return read_regular_file(path, max_bytes=max_bytes)
    except (OSError, UserError):
        return None


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically by one that only this user can read and write."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path.parent) as directory:
        temporary = Path(directory, path.name)
        temporary.write_bytes(data)
        temporary.chmod(0o600)
        fsync_path(temporary)
        temporary.replace(path)


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[bool]:
    """Context manager that waits for the lock of a directory; False on a file system without locks.

    It excludes other processes and other threads; the system releases it when a process dies.
    """
    with open(directory / "lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
