"""The border between what goes wrong and what a person reads about it."""

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

from polyhead.core.extras import find_extra, install_command
from polyhead.core.i18n import translate_message
from polyhead.errors import UserError
from polyhead.foreign import FOUND

DONE, FAILED, MISTAKE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
NO_ROOM = ("allocate memory", "Storage size calculation overflowed")  # RuntimeErrors of torch
_PATH_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, with every error turned into one line and an exit code.

    With POLYHEAD_DEBUG=1 the traceback comes first.
    """

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # whoever read our output has seen enough; keep Python from complaining when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:
            stop("interrupted", INTERRUPTED)
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("click", "typer"):
                raise
            if os.environ.get("POLYHEAD_DEBUG") == "1":
                traceback.print_exc()
            stop(*said(error))

    return run


def stop(message: str, code: int) -> NoReturn:
    """Say why, and end with that exit code."""
    raise typer.Exit(tell(message, code)) from None


def tell(message: str, code: int) -> int:
    """Say why; returns the exit code."""
    lines = [translate_message(line) for line in message.splitlines()] or ["stopped"]
    print("\n".join(f"polyhead: {line}" for line in lines), file=sys.stderr)
    return code


def said(error: Exception) -> tuple[str, int]:
    """What to tell the user about an error, and the exit code."""
    if isinstance(error, UserError):
        return str(error), MISTAKE
    if type(error).__name__ == "ValidationError" and type(error).__module__.startswith("pydantic"):
        from polyhead.errors import explain

        return str(explain(error)), MISTAKE  # type: ignore[arg-type]
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_ROOM):
        return (
            "out of memory; use a smaller batch (train.max_tokens, --batch-tokens) or a smaller model",
            FAILED,
        )
    if isinstance(error, ModuleNotFoundError) and (extra := find_extra(error.name)):
        return f"this needs {error.name}: {install_command(extra)}", MISTAKE
    if isinstance(error, OSError) and error.filename is not None:
        named = isinstance(error, _PATH_ERRORS) or error.errno == errno.ENAMETOOLONG
        return f"{error.filename}: {error.strerror}", MISTAKE if named else FAILED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}", FAILED
    what = f"unexpected {type(error).__name__}: {error or 'no message'} ({_place(error)})\n"
    if FOUND:
        return (
            f"{what}look first at what is not Polyhead's: {', '.join(sorted(FOUND))}; "
            "POLYHEAD_DEBUG=1 shows the traceback",
            FAILED,
        )
    return (
        f"{what}this is a defect of Polyhead: please report it with the output of 'polyhead env'; "
        "POLYHEAD_DEBUG=1 shows the traceback",
        FAILED,
    )


def _place(error: Exception) -> str:
    """The innermost line of our own code that the error went through: ``recipe.py:12``."""
    home = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(home)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "no place known"
