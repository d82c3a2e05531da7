"""Convert exceptions and mistakes in the command line to messages and exit codes."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer

from polyhead.core.errors import UserError, did_you_mean
from polyhead.core.extras import find_extra, install_command
from polyhead.core.i18n import translate_message
from polyhead.core.key_aliases import OPTION_ALIASES, aliased_keys, hint_text
from polyhead.core.messages import alias_hint, from_validation_error
from polyhead.core.output_paths import did_you_mean_path
from polyhead.core.plugins import LOADED_PLUGINS


def format_usage_error(verb: str, error: Any) -> str:
    """Format an error of the argument parser in one line: the word, the problem and the way out.

    The error is one of click, or of the copy of click in another package.
    """
    return f"{_parameter_prefix(error)}{_describe_reason(error)} (polyhead {verb} --help)"


def _parameter_prefix(error: Any) -> str:
    """Return ``--read-batch: `` if the error refers to one option or argument."""
    param = getattr(error, "param", None)
    if param is None:
        return ""
    name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name
    return f"{name}: "


def _describe_reason(error: Any) -> str:
    if type(error).__name__ == "NoSuchOption":
        params = [param for param in error.ctx.command.params if not param.hidden]
        names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
        long_options = [name for name in names if name.startswith("--")]
        takes_keys = any(param.metavar == "KEY=VALUE" for param in params)
        return f"no option {error.option_name}{_option_hint(error.option_name, long_options, takes_keys)}"
    if type(error).__name__ == "MissingParameter":
        return "missing"
    if type(error.__cause__).__name__ == "ValidationError":  # pydantic's, which contains the value
        return str(from_validation_error(error.__cause__)).removesuffix(".")
    if "unexpected extra argument" in str(error.message):
        return f"{_lower_first(error.message)}{_extra_argument_hint(error.ctx.command.params, error.message)}"
    return _lower_first(error.message)


def _lower_first(message: object) -> str:
    reason = " ".join(str(message).replace("argument(s)", "argument").split()).removesuffix(".")
    return reason[:1].lower() + reason[1:]


def _extra_argument_hint(params: list[Any], message: str) -> str:
    """Return a hint for an unexpected argument, whose name is in the message."""
    is_path = re.search(r"\.\w[^ .)]*\)", message)
    if any("TEXT" in str(param.metavar) for param in params) and not is_path:
        return "; quote a text of several words"
    if is_path and any("--output" in param.opts for param in params):
        return "; for an output file use --output FILE"
    return ""


def _option_hint(typed_option: str, known_options: list[str], takes_keys: bool) -> str:
    """Suggest an option, also for another toolkit's name of it, or a key of the recipe."""
    name = typed_option.lstrip("-")
    for key in aliased_keys(name):
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        if option in known_options:
            return hint_text({key: option})
    # compare without the dashes that all options share
    similar = did_you_mean(name, [option.lstrip("-") for option in known_options], prefix="--")
    if takes_keys and not similar:
        from polyhead.config.recipe import Recipe

        section, dot, _ = name.partition(".")
        field_hint = f"; did you mean {name!r}?" if name in Recipe.model_fields else ""
        key = (
            "."
            if dot and section in Recipe.model_fields
            else field_hint or alias_hint(name.replace("-", "_"), Recipe)
        )
        if key:
            return f"{key} Recipe keys are written KEY=VALUE"
    if aliases := [
        f"--{option}" for option in OPTION_ALIASES.get(name, "").split() if f"--{option}" in known_options
    ]:
        return f"; did you mean {aliases[0]!r}?"
    return similar


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
        is_missing = isinstance(error, FileNotFoundError)
        hint = did_you_mean_path(Path(os.fsdecode(error.filename))) if is_missing else ""
        return f"{error.filename}: {error.strerror}{hint}", EXIT_USAGE if is_path_error else EXIT_FAILED
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
