"""Completion of what is typed in bash, zsh and fish: the verbs, and the options of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import shellingham
import typer
from typer.completion import get_completion_script, install

from polyhead.cli.app import VERBS
from polyhead.errors import UserError, unknown

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_POLYHEAD_COMPLETE"  # set by the shell's script when it asks for completions


def complete() -> int:
    """Print what could come next, for the shell that asks through the environment; returns the exit code."""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    app = typer.Typer(add_completion=True)
    app.callback()(_options)
    for verb, (module, about) in VERBS.items():
        run = import_module(f"polyhead.cli.{module}").run if verb in typed.split() else _no_options
        app.command(verb, help=about, context_settings={"help_option_names": ["-h", "--help"]})(run)
    try:
        app(prog_name="polyhead")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def show(arguments: Sequence[str]) -> int:
    """Print the script that a shell reads."""
    print(get_completion_script(prog_name="polyhead", complete_var=VARIABLE, shell=_shell(arguments)))
    return 0


def set_up(arguments: Sequence[str]) -> int:
    """Write the script, and the line that reads it into the start file of the shell."""
    shell, path = install(shell=_shell(arguments), prog_name="polyhead", complete_var=VARIABLE)
    print(f"completion for {shell} is in {path}; it works in the next terminal")
    return 0


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "--show-completion": show,
    "--install-completion": set_up,
}


def _shell(arguments: Sequence[str]) -> str:
    """The shell that is named, else the one that this was started from."""
    if len(arguments) > 1:
        raise UserError(f"completion is for one shell at a time, got {', '.join(arguments)}")
    if arguments:
        name = arguments[0]
    else:
        try:
            name = shellingham.detect_shell()[0]
        except shellingham.ShellDetectionFailure:
            raise UserError(f"which shell? name it: {', '.join(SHELLS)}") from None
    if name not in SHELLS:
        raise unknown("shell", name, SHELLS)
    return str(name)


def _options(
    version: Annotated[bool, typer.Option("--version", help="the version")] = False,
    lang: Annotated[str, typer.Option(help="language of messages and pages: en, zh")] = "",
) -> None:
    """The options that stand before a verb."""


def _no_options() -> Any:
    """In place of a verb that is not asked about."""
