"""``polyhead recipe``: from text files to a recipe that fits them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.places import file_place, put
from polyhead.recipe import is_recipe


def run(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE... [KEY=VALUE]...",
            help="the text to learn from, and keys of the recipe that are known already, e.g. data.text=review",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="file for the recipe", show_default="standard output")
    ] = None,
    example: Annotated[
        bool,
        typer.Option("--example", help="write the example recipe of that name; without a name, list them"),
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="FORMAT",
            help="choose parts that polyhead export can write there: hf, ctranslate2, onnx or gguf",
            show_default="the parts that measured best, wherever they go",
        ),
    ] = None,
) -> None:
    """Look at your own text and write a recipe for it: what can be learned from it, and how large a model fits.

    Two files of as many lines become a translator, plain text a language model, a table with labels a classifier, one with
    two texts a translator, one with a text a language model, conversations a model that answers. Columns are found by their
    names or by what is in them; task=... and data.text=... say otherwise.

    \b
    polyhead recipe train.en train.de --output mine.yaml
    polyhead recipe reviews.csv data.text=review data.label=stars > reviews.yaml
    polyhead recipe articles.jsonl task=masked-lm
    polyhead recipe train.en train.de --for hf --output mine.yaml
    polyhead recipe --example
    polyhead recipe --example dates-en-zh --output dates.yaml
    """
    given = given or []
    if example:
        show_example(given, output)
        return
    from polyhead.starter.draft import draft_recipe

    files = [one for one in given if "=" not in one or Path(one).exists()]
    for recipe in filter(is_recipe, files):
        raise UserError(f"{recipe} is a recipe already; train it: polyhead train {shlex.quote(recipe)}")
    check_output(output, files)
    changes = [one for one in given if one not in files]
    draft = draft_recipe(files, changes, target, str(output or "mine.yaml"))
    if output is None:
        print(draft.text, end="")
        for note in [] if sys.stdout.isatty() else draft.notes:  # there they are seen above the recipe
            print(f"polyhead: {note}", file=sys.stderr)
        return
    put(output, draft.text.encode())
    for line in draft.text.split("\n")[: 1 + len(draft.notes)]:
        print(line.removeprefix("# "), file=sys.stderr)
    train = f"polyhead train {shlex.quote(str(output))}"
    print(tr("{file}; train it: {command}", file=output, command=train), file=sys.stderr)


def show_example(names: Sequence[str], output: Path | None) -> None:
    """List the examples, or print or write the one that is named."""
    from polyhead.starter.examples import list_examples, read_example, write_example

    if not names:
        titles = list_examples()
        width = max(map(len, titles))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
        return
    if len(names) > 1:
        raise UserError(
            f"--example takes one name, got {', '.join(names)}; keys are changed by polyhead train"
        )
    if output is None:
        print(read_example(names[0]), end="")
        return
    check_output(output)
    corpus = write_example(names[0], output)
    command = f"polyhead train {shlex.quote(str(output))}"
    if corpus is None:
        command += f" data.root=path/to/{names[0]}"
    print(tr("{file}; train it: {command}", file=output, command=command), file=sys.stderr)


def check_output(output: Path | None, inputs: Sequence[str] = ()) -> None:
    """UserError if the recipe cannot be written there, or something lies there."""
    if output is not None and file_place(output, "--output", inputs).exists():
        raise UserError(f"--output {output} is there already; name another file, or remove it first")
