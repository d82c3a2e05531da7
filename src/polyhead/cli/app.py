"""Entry point and verb dispatch.

Only the requested verb is imported, so that ``polyhead --help`` costs no more than starting Python.
"""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import signature

import polyhead
from polyhead.cli.verbs import VERBS
from polyhead.core import i18n, key_aliases
from polyhead.core.errors import UserError, command_line, did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code.

    0: success, 1: failure, 2: user error, 130: interrupted, 141: standard output is closed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with command_line():
            code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has closed the pipe; keep Python from complaining when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:  # outside of handle_errors: while the verb is imported
        print("polyhead: interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # for example a full disk
        print(f"polyhead: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def dispatch(arguments: list[str]) -> int:
    """Print help or version, or run a verb; return the exit code."""
    if "_POLYHEAD_COMPLETE" in os.environ:
        from polyhead.cli import completion

        return completion.print_completions()
    try:
        arguments = take_language(arguments)
    except UserError as error:
        print(f"polyhead: {error}", file=sys.stderr)
        return 2
    if arguments[0:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(format_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"polyhead {polyhead.__version__}")
        return 0
    if arguments[0] in ("--show-completion", "--install-completion"):
        return run_completion(arguments[0], arguments[1:])
    if arguments[0] not in VERBS:
        aliased = [
            verb for verb, names in key_aliases.VERB_ALIASES.items() if arguments[0].lower() in names.split()
        ]
        hint = (
            f"; did you mean {aliased[0]!r}?"
            if aliased
            else did_you_mean(arguments[0], [*VERBS, "--version", "--help", "-V"])
        )
        hint = hint or f"; known: {', '.join(VERBS)}"
        message = i18n.translate_message(f"unknown verb {arguments[0]!r}{hint}")
        print(f"polyhead: {message}", file=sys.stderr)
        return 2
    return run_verb(arguments[0], arguments[1:])


def take_language(arguments: list[str]) -> list[str]:
    """Set the language from ``--lang``, before or after the verb; return the other arguments."""
    i18n.set_language(None)
    for index, word in enumerate(arguments):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == "--lang":
            num_used = 1 if equals else 2
            if not equals:
                value = arguments[index + 1] if index + 1 < len(arguments) else ""
            i18n.set_language(value)
            return arguments[:index] + arguments[index + num_used :]
    return arguments


def format_overview() -> str:
    """Return the text of ``polyhead --help``."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {i18n.tr(description)}" for verb, (_, description) in VERBS.items()]
    return "\n".join(
        [
            i18n.tr("Usage: polyhead VERB [ARGUMENTS]"),
            "",
            i18n.tr("Builds, trains, evaluates and serves Transformers; every component is chosen by name."),
            "",
            *lines,
            "",
            i18n.tr("Run 'polyhead VERB --help' for details, 'polyhead --version' for the version."),
            i18n.tr(
                "--install-completion [bash|zsh|fish] enables shell completion of verbs and "
                "options; --show-completion prints the script."
            ),
            i18n.tr("--lang en|zh sets the language of messages and pages; the default follows LANG."),
        ]
    )


def run_completion(option: str, arguments: list[str]) -> int:
    """Print or install the shell completion script."""
    from polyhead.cli import completion

    try:
        return completion.ACTIONS[option](arguments)
    except UserError as error:
        print(f"polyhead: {i18n.translate_message(str(error))}", file=sys.stderr)
        return 2


def run_verb(verb: str, arguments: list[str]) -> int:
    """Import the verb, parse its arguments, and run it with error handling."""
    if arguments[:1] == [""]:  # a path: that of the working directory
        message = f"the first argument is empty (polyhead {verb} --help)"
        print(f"polyhead: {i18n.translate_message(message)}", file=sys.stderr)
        return 2
    with pause_collector():
        import typer

        from polyhead.cli import error_handler as usage_errors
        from polyhead.cli.error_handler import handle_errors
        from polyhead.cli.verb_help import VerbCommand

        function = import_module(f"polyhead.cli.{VERBS[verb][0]}").run
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    names = {"help_option_names": ["-h", "--help"]}
    app.command(verb, cls=VerbCommand, context_settings=names)(handle_errors(function))
    if "output" in signature(function).parameters:
        arguments = [re.sub(r"^--out(?=$|=)", "--output", word) for word in arguments]
    try:
        return int(app(arguments, prog_name=f"polyhead {verb}", standalone_mode=False) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        if not hasattr(error, "format_message"):  # errors of click, and of typer's own copy of it, have it
            raise
        print(
            f"polyhead: {i18n.translate_message(usage_errors.format_usage_error(verb, error))}",
            file=sys.stderr,
        )
        return 2


@contextmanager
def pause_collector() -> Iterator[None]:
    """Context without garbage collection, for imports at the start of a process, which leave no garbage.

    Their objects are not walked later either: walks of them take a fifth of a short command.
    """
    is_start = "torch" not in sys.modules and gc.isenabled()
    if is_start:
        gc.disable()
    try:
        yield
    finally:
        if is_start:
            gc.freeze()
            gc.enable()
