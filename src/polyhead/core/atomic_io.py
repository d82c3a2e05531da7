"""Crash-safe file writing: content is hashed while written and synced before it is renamed into place."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from polyhead.core.errors import UserError


def process_start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; distinguishes it from a later one with the same pid.

    None if there is no such process, 0 if the time is unknown.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        # the process name in parentheses may itself contain spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else 0
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def is_process_alive(pid: int, start_ticks: int | None = None) -> bool:
    """Whether the process is running: the pid exists and, where both are known, the start times agree."""
    now = process_start_time(pid)
    return now is not None and (not now or not start_ticks or now == start_ticks)


BUFFER = 1 << 20


class HashingWriter:
    """A new file that is hashed while it is written and synced when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``; small writes are buffered, so that many small tensors do not cost a call each."""
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

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._flush()
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        # 16 MiB at a time: the kernel limits a write to 2 GiB, and signals are handled between writes
        data = data[os.write(fd, data[: 16 * BUFFER]) :]


def fsync_path(path: Path) -> None:
    """Sync a file, or the entries of a directory; without it a rename may be lost on power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def name_in_oserror(path: Path) -> Iterator[None]:
    """Context manager that adds ``path`` to an OSError, which lacks it in some cases, such as a full disk."""
    try:
        yield
    except OSError as error:
        # errors raised by Python itself, such as gzip.BadGzipFile, have a message but no errno
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` atomically: readers see all of the old or all of the new.

    For one writer at a time.
    """
    with atomic_writer(path) as out:
        out.write(data)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[HashingWriter]:
    """Like ``replace_file``, for content that is written piece by piece."""
    temporary = path.with_name(f"{path.name}.tmp")
    with name_in_oserror(path):
        remove(temporary)
        try:
            with HashingWriter(temporary) as out:
                yield out
            os.rename(temporary, path)
        except BaseException:
            remove_quietly(temporary)
            raise
        fsync_path(path.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Context manager that yields a directory to fill and renames it to ``path`` when everything is synced.

    On failure nothing is left. An empty directory at ``path`` is replaced. Several processes may write the
    same path; leftovers of dead processes are removed.
    """
    path = path.resolve()
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        pid = leftover.name.rpartition("-")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not is_process_alive(int(pid))):
            remove_quietly(leftover)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for entry in [*temporary.rglob("*"), temporary]:
            fsync_path(entry)
        os.rename(temporary, path)
    except BaseException:
        remove_quietly(temporary)
        raise
    fsync_path(path.parent)


def remove(path: Path) -> None:
    """Remove a file, a symlink (not its target) or a directory tree; do nothing if it does not exist.

    Whatever can be deleted is deleted before the first error is raised, as it takes space on the disk.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(path)
        return
    errors = []
    for name in os.listdir(path):
        try:
            remove(path / name)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    os.rmdir(path)


def remove_quietly(path: Path) -> None:
    """Remove a path during error handling, ignoring further errors so that the original one is reported."""
    with contextlib.suppress(OSError):
        remove(path)


def file_exists(path: Path) -> bool:
    """Whether a path is a file, or a link to one; a UserError if anything else has that name.

    A fifo, a device, a directory or a link to nothing is damage and not an absent file.
    """
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise UserError(
            f"{path} is a broken link" if is_link else f"cannot read {path}: {error.strerror}"
        ) from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file")
    return True


def read_regular_file(path: Path, *, size: int | None = None, max_bytes: int | None = None) -> bytes:
    """Read a regular file that is no symlink, if it has exactly ``size`` or at most ``max_bytes`` bytes."""
    with open_regular_file(path, size=size, max_bytes=max_bytes) as file:
        # not to its end: files of /proc have no size, and reading some of them waits forever
        return file.read(os.fstat(file.fileno()).st_size)


def read_linked_file(path: Path, max_bytes: int) -> bytes:
    """As ``read_regular_file``, also through a link: a file that the user names. OSError if it is missing."""
    path.stat()
    return read_regular_file(path.resolve(), max_bytes=max_bytes)


@contextlib.contextmanager
def open_regular_file(
    path: Path, *, size: int | None = None, max_bytes: int | None = None
) -> Iterator[io.BufferedReader]:
    """Context manager that opens a regular file as ``read_regular_file`` does, to read it piece by piece."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UserError(f"{path} is a link or not a file; expected a regular file") from None
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a regular file")
        if size is not None and status.st_size != size:
            raise UserError(f"{path} has {status.st_size} bytes; expected {size}")
        if max_bytes is not None and status.st_size > max_bytes:
            raise UserError(f"{path} has {status.st_size} bytes; the maximum is {max_bytes}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(fd)
