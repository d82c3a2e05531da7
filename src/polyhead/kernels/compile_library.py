"""Compile a shared library into the user's cache directory, once for all processes and threads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyhead.core.atomic_io import fsync_path, remove_quietly
from polyhead.core.i18n import tr
from polyhead.kernels import user_cache
from polyhead.kernels.user_cache import read_private, write_private

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
