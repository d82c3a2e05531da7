"""The verbs, and the way from what was typed to the function of one verb.

Only the verb that was typed is imported, so that ``polyhead --help`` costs no more than starting Python.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import polyhead
from polyhead import elsewhere
from polyhead.core import i18n
from polyhead.errors import UserError, nearest

# verb -> (its module in this package, what it does)
VERBS = {
    "demo": ("demo", "Train a translator in minutes on text that is included, and judge it."),
    "recipe": ("recipe", "Look at your own text, and write a recipe that fits it."),
    "train": ("train", "Train a model from raw text, as a recipe says."),
    "report": ("report", "Show how a training went, or several: a page."),
    "plan": ("plan", "Say what a design costs before it is trained: operations, memory, time."),
    "compare": ("compare", "Train designs side by side at equal budget, and say which is better."),
    "eval": ("evaluate", "Measure a trained model: BLEU, chrF, perplexity, accuracy."),
    "translate": ("translate", "Translate a file or what is piped in, one line at a time."),
    "generate": ("generate", "Let a language model go on from a text."),
    "chat": ("chat", "Converse with a language model."),
    "classify": ("classify", "Say which class texts, or pairs of texts, belong to."),
    "score": ("score", "Say how likely given translations are, or lines of text."),
    "fill-mask": ("fill_mask", "Say what stands behind the masks of texts."),
    "embed": ("embed", "Make one vector of each text."),
    "attend": ("attend", "Show what every head looks at: a page, and a map in the terminal."),
    "serve": ("serve", "Serve a model over HTTP, with a page to try it on."),
    "draw": ("draw", "Draw what positions do and where tokens lie: a page."),
    "import": ("import_", "Make a run of a published checkpoint, such as GPT-2."),
    "export": ("export", "Write a run for transformers, onnxruntime, CTranslate2 or llama.cpp."),
    "convert-heads": ("convert_heads", "Make a trained model's attention grouped or multi-query."),
    "parts": ("parts", "List the parts a model can be made of, with their options."),
    "shortlist": ("shortlist", "Make a translator faster: the tokens that each source word suggests."),
    "sizes": ("sizes", "Count the parameters of a model, part by part."),
    "lab": ("lab", "Measure claims of the literature on this machine."),
    "env": ("env", "Describe this installation, for bug reports."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was typed and return the exit code: 0 done, 1 failed, 2 mistake of the user, 130 interrupted, 141 nobody reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = answer(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has seen enough; keep Python from complaining when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:  # before the verb's own boundary: while it is imported
        print("polyhead: interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # no room for the help, say
        print(f"polyhead: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def answer(typed: list[str]) -> int:
    """Help, version, or the verb that was typed; its exit code."""
    if "_POLYHEAD_COMPLETE" in os.environ:
        from polyhead.cli import completion

        return completion.complete()
    try:
        typed = take_language(typed)
    except UserError as error:
        print(f"polyhead: {error}", file=sys.stderr)
        return 2
    if not typed or typed[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if typed[0] in ("-V", "--version"):
        print(f"polyhead {polyhead.__version__}")
        return 0
    if typed[0] in ("--show-completion", "--install-completion"):
        return run_completion(typed[0], typed[1:])
    if typed[0] not in VERBS:
        meant = [verb for verb, names in elsewhere.VERBS.items() if typed[0].lower() in names.split()]
        hint = (
            f"; did you mean {meant[0]!r}?"
            if meant
            else nearest(typed[0], [*VERBS, "--version", "--help", "-V"])
        )
        hint = hint or f"; there are: {', '.join(VERBS)}"
        message = i18n.translate_message(f"unknown verb {typed[0]!r}{hint}")
        print(f"polyhead: {message}", file=sys.stderr)
        return 2
    return run_verb(typed[0], typed[1:])


def take_language(typed: list[str]) -> list[str]:
    """Set the language that ``--lang`` names, before or after the verb; returns the other arguments."""
    i18n.set_language(None)
    for place, word in enumerate(typed):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == "--lang":
            used = 1 if equals else 2
            if not equals:
                value = typed[place + 1] if place + 1 < len(typed) else ""
            i18n.set_language(value)
            return typed[:place] + typed[place + used :]
    return typed


def overview() -> str:
    """The text of ``polyhead --help``."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {i18n.tr(what)}" for verb, (_, what) in VERBS.items()]
    return "\n".join(
        [
            i18n.tr("Usage: polyhead VERB [ARGUMENTS]"),
            "",
            i18n.tr("Builds, trains, measures and serves Transformers; every part is chosen by name."),
            "",
            *lines,
            "",
            i18n.tr("Run 'polyhead VERB --help' for details, 'polyhead --version' for the version."),
            i18n.tr(
                "--install-completion [bash|zsh|fish] lets the shell complete verbs and options; --show-completion prints how."
            ),
            i18n.tr("--lang en|zh sets the language of messages and pages; the default is that of LANG."),
        ]
    )


def run_completion(option: str, arguments: list[str]) -> int:
    """Print or install the script that lets a shell complete verbs and their options."""
    from polyhead.cli import completion

    try:
        return completion.ACTIONS[option](arguments)
    except UserError as error:
        print(f"polyhead: {i18n.translate_message(str(error))}", file=sys.stderr)
        return 2


def run_verb(verb: str, arguments: list[str]) -> int:
    """Import the verb, parse its arguments, run it inside the error boundary."""
    import typer

    from polyhead.cli import usage
    from polyhead.cli.guard import guarded

    module = VERBS[verb][0]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    function = import_module(f"polyhead.cli.{module}").run
    names = {"help_option_names": ["-h", "--help"]}
    app.command(verb, context_settings=names)(guarded(function))
    try:
        return int(app(arguments, prog_name=f"polyhead {verb}", standalone_mode=False) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what click's mistakes have, and typer's own copy of them
            raise
        print(f"polyhead: {i18n.translate_message(usage.said(verb, error))}", file=sys.stderr)
        return 2
