"""Shell completion for bash, zsh and fish: verbs and their options."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import shellingham
import typer
from typer.completion import get_completion_script, install

from polyhead.cli.verbs import VERBS
from polyhead.core.errors import UserError, unknown_name_error

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_POLYHEAD_COMPLETE"  # set by the shell's script when it asks for completions


def print_completions() -> int:
    """Print the completions that the shell requests through the environment; return the exit code."""
    command_line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    app = typer.Typer(add_completion=True)
    app.callback()(_options)
    for verb, (module, description) in VERBS.items():
        run = import_module(f"polyhead.cli.{module}").run if verb in command_line.split() else _no_options
        app.command(verb, help=description, context_settings={"help_option_names": ["-h", "--help"]})(run)
    try:
        app(prog_name="polyhead")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def print_script(arguments: Sequence[str]) -> int:
    """Print the completion script of a shell."""
    print(
        get_completion_script(
            prog_name="polyhead", complete_var=COMPLETE_VARIABLE, shell=_choose_shell(arguments)
        )
    )
    return 0


def install_script(arguments: Sequence[str]) -> int:
    """Write the completion script, and the line that loads it into the start file of the shell."""
    shell, path = install(
        shell=_choose_shell(arguments), prog_name="polyhead", complete_var=COMPLETE_VARIABLE
    )
    print(f"completion for {shell} is in {path}; it works in the next terminal")
    return 0


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "--show-completion": print_script,
    "--install-completion": install_script,
}


def _choose_shell(arguments: Sequence[str]) -> str:
    """Return the named shell, else the one that started this process."""
    if len(arguments) > 1:
        raise UserError(f"expected one shell, got {', '.join(arguments)}")
    if arguments:
        name = arguments[0]
    else:
        try:
            name = shellingham.detect_shell()[0]
        except shellingham.ShellDetectionFailure:
            raise UserError(f"missing SHELL; expected one of {', '.join(SHELLS)}") from None
    if name not in SHELLS:
        raise unknown_name_error("shell", name, SHELLS)
    return str(name)


def _options(
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
    lang: Annotated[str, typer.Option(help="language of messages and pages: en, zh")] = "",
) -> None:
    """Options before the verb."""


def _no_options() -> Any:
    """Placeholder for a verb whose options are not requested."""
