"""Convert exceptions to messages and exit codes."""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer

from polyhead.core.errors import UserError
from polyhead.core.extras import find_extra, install_command
from polyhead.core.i18n import translate_message
from polyhead.core.plugins import LOADED_PLUGINS

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 0, 1, 2, 130, 141
OUT_OF_MEMORY_SIGNS = ("allocate memory", "Storage size calculation overflowed")  # RuntimeErrors of torch
_PATH_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def handle_errors(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a verb so that every error becomes one line and an exit code.

    With POLYHEAD_DEBUG=1 the traceback comes first.
    """

    @functools.wraps(verb)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # the reader has closed the pipe; keep Python from complaining when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            exit_with("interrupted", EXIT_INTERRUPTED)
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("click", "typer"):
                raise
            if os.environ.get("POLYHEAD_DEBUG") == "1":
                traceback.print_exc()
            exit_with(*describe_error(error))

    return wrapper


def exit_with(message: str, code: int) -> NoReturn:
    """Print an error message and exit with ``code``."""
    raise typer.Exit(print_error(message, code)) from None


def print_error(message: str, code: int) -> int:
    """Print an error message and return ``code``."""
    lines = [translate_message(line) for line in message.splitlines()] or ["stopped"]
    print("\n".join(f"polyhead: {line}" for line in lines), file=sys.stderr)
    return code


def describe_error(error: Exception) -> tuple[str, int]:
    """Return the message for the user and the exit code."""
    if isinstance(error, UserError):
        return str(error), EXIT_USAGE
    if type(error).__name__ == "ValidationError" and type(error).__module__.startswith("pydantic"):
        from polyhead.core.messages import from_validation_error

        return str(from_validation_error(error)), EXIT_USAGE  # type: ignore[arg-type]
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY_SIGNS):
        return (
            "out of memory; use a smaller batch (train.max_tokens, --batch-tokens) or a smaller model",
            EXIT_FAILED,
        )
    if isinstance(error, ModuleNotFoundError) and (extra := find_extra(error.name)):
        return f"this needs {error.name}: {install_command(extra)}", EXIT_USAGE
    if isinstance(error, OSError) and error.filename is not None:
        is_path_error = isinstance(error, _PATH_ERRORS) or error.errno == errno.ENAMETOOLONG
        return f"{error.filename}: {error.strerror}", EXIT_USAGE if is_path_error else EXIT_FAILED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}", EXIT_FAILED
    summary = f"unexpected {type(error).__name__}: {error or 'no message'} ({_error_location(error)})\n"
    if LOADED_PLUGINS:
        return (
            f"{summary}check the components of other packages first: {', '.join(sorted(LOADED_PLUGINS))}; "
            "POLYHEAD_DEBUG=1 shows the traceback",
            EXIT_FAILED,
        )
    return (
        f"{summary}this is a bug in Polyhead: please report it with the output of 'polyhead env'; "
        "POLYHEAD_DEBUG=1 shows the traceback",
        EXIT_FAILED,
    )


def _error_location(error: Exception) -> str:
    """Return the innermost line of our own code in the traceback: ``recipe.py:12``."""
    home = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(home)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown location"
