"""Writing that survives a crash: each byte is hashed on its way and synced before it is given a name."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from polyhead.alive import alive
from polyhead.errors import UserError

BUFFER = 1 << 20


class Writer:
    """A new file that is hashed while it is written and synced when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``; small pieces are gathered, so that a thousand biases are not a thousand calls."""
        self._hash.update(data)
        self.size += len(data)
        if len(self._buffer) + len(data) >= BUFFER:
            self._flush()
        if len(data) >= BUFFER:
            _write_all(self._fd, memoryview(data))
        else:
            self._buffer += data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _flush(self) -> None:
        pending, self._buffer = self._buffer, bytearray()
        _write_all(self._fd, memoryview(pending))

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        # 16 MiB at a time: the kernel cuts off at 2 GiB anyway, and a signal is answered in between
        data = data[os.write(fd, data[: 16 * BUFFER]) :]


def sync(path: Path) -> None:
    """Make a file durable, or the names in a directory: without this a rename may be lost with the power."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError within names ``path``, also where the system names none, as when a disk is full."""
    try:
        yield
    except OSError as error:
        # those that the system does not raise, as of what is no gzip, have a message alone
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def replace_file(path: Path, data: bytes) -> None:
    """Give ``path`` new content at once: readers see all of the old or all of the new. For one writer."""
    with replacing(path) as out:
        out.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Writer]:
    """As ``replace_file``, for content that is written piece by piece."""
    temporary = path.with_name(f"{path.name}.tmp")
    with named(path):
        remove(temporary)
        try:
            with Writer(temporary) as out:
                yield out
            os.rename(temporary, path)
        except BaseException:
            remove_quietly(temporary)
            raise
        sync(path.parent)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which gets the name ``path`` when all in it is synced; where that fails there is nothing.

    An empty directory of that name gives way. Several processes may be at the same one; what killed ones left is removed.
    """
    path = path.resolve()
    for left in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not alive(int(pid))):
            remove_quietly(left)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for place in [*temporary.rglob("*"), temporary]:
            sync(place)
        os.rename(temporary, path)
    except BaseException:
        remove_quietly(temporary)
        raise
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it points to) or a directory with all in it, if there is one."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(path)
        return
    for name in os.listdir(path):
        remove(path / name)
    os.rmdir(path)


def remove_quietly(path: Path) -> None:
    """Clean up after an error, which is worth more than any error of the cleaning."""
    with contextlib.suppress(OSError):
        remove(path)


def read_regular(path: Path, *, size: int | None = None, most: int | None = None) -> bytes:
    """All bytes of a regular file that is no link, if it has exactly ``size`` or at most ``most`` bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UserError(f"{path} is a link or not a file; a plain file was wanted") from None
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a plain file")
        if size is not None and status.st_size != size:
            raise UserError(f"{path} has {status.st_size} bytes; {size} were wanted")
        if most is not None and status.st_size > most:
            raise UserError(f"{path} has {status.st_size} bytes; at most {most} are read")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(fd)
