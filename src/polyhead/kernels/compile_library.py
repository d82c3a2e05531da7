"""Compile a shared library into the user's cache directory, once for all processes and threads."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polyhead.core.atomic_io import fsync_path, read_regular_file, remove_quietly
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.kernels import compile_library as user_cache

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


# runs a command, and kills its whole process group when the pipe on standard input is closed: at the latest
# when the process at the other end dies, also by SIGKILL
_GUARD = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -s KILL 0; } & "$@" 3<&-; code=$?; kill $!; exit $code'
_TRANSIENT = re.compile(
    r"signal terminated|virtual memory exhausted|out of memory|cannot allocate memory|no space left|"
    r"quota exceeded|too many open files|resource temporarily unavailable|input/output error",
    re.IGNORECASE,
)
_MAX_REASON = 300  # characters


class CompileError(Exception):
    """The reason why a library cannot be compiled."""


def has_library(library: Path) -> bool:
    """Whether a library is complete: its SHA-256 is that of the file next to it.

    A PermissionError if others may write it; a CompileError if the compiler failed with these sources before.
    """
    with contextlib.suppress(FileNotFoundError):
        user_cache.check_private(library)
        digest = read_private(library.with_suffix(".sha256"), max_bytes=64)
        if digest == _hash_file(library):
            return True
    failure = library.with_suffix(".failed")
    if reason := read_private(failure, max_bytes=8 * _MAX_REASON):
        raise CompileError(f"{reason.decode(errors='replace')}; to compile again, delete {failure}")
    return False


def compile_library(library: Path, command: Sequence[str], source_dir: Path) -> None:
    """Run a compiler's command in ``source_dir`` if the library is missing or damaged.

    The directory of the library must be private. A CompileError if the compiler fails; the reason is kept
    next to the library for later processes, unless the same command may succeed later.
    """
    if has_library(library):
        return
    with user_cache.lock_directory(library.parent) as is_locked:
        if has_library(library):  # the last holder of the lock compiled it
            return
        for leftover in library.parent.glob(f"{user_cache.TEMPORARY_PREFIX}*") if is_locked else ():
            remove_quietly(leftover)
        begin = tr("compiling kernels for this processor, once (10 to 30 seconds of a free core)")
        print(f"polyhead: {begin}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(
            prefix=user_cache.TEMPORARY_PREFIX, dir=library.parent, ignore_cleanup_errors=True
        ) as build_dir:
            output = Path(build_dir, library.name)
            code, messages = _run_compiler([*command, "-o", str(output)], source_dir, build_dir)
            if code:
                reason = f"{Path(command[0]).name} failed: {_first_error(messages) or f'exit code {code}'}"
                if code < 128 and not _TRANSIENT.search(messages):
                    with contextlib.suppress(OSError):
                        write_private(library.with_suffix(".failed"), reason.encode())
                raise CompileError(reason)
            output.chmod(0o700)
            fsync_path(output)
            digest = _hash_file(output)
            output.replace(library)
        write_private(library.with_suffix(".sha256"), digest)


def _run_compiler(command: Sequence[str], source_dir: Path, build_dir: str) -> tuple[int, str]:
    """The exit code and the messages of a compiler, which ends with all its processes if this one ends."""
    guarded_command = ["sh", "-c", _GUARD, "sh", *command]
    environment = os.environ | {"TMPDIR": build_dir, "LC_ALL": "C"}
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as pipe, open(write_end, "wb") as guard:
        process = subprocess.Popen(
            guarded_command, stdin=pipe, cwd=source_dir, env=environment, start_new_session=True, **output
        )
        try:
            messages, _ = process.communicate()
        finally:
            guard.close()  # ends the processes if an exception interrupted the wait
            process.wait()
    return process.returncode, messages


def _first_error(messages: str) -> str:
    """The first line of a compiler's or linker's messages that states an error, else the first line."""
    lines = messages.splitlines()
    errors = [line for line in lines if re.search(r"\berror: |\bld: |\bcannot ", line)]
    return (errors or lines or [""])[0].strip()[:_MAX_REASON]


def _hash_file(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()
