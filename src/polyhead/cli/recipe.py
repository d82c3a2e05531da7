"""``polyhead recipe``: from text files to a recipe that fits them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyhead.errors import UserError
from polyhead.places import file_place, put


def run(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE]...",
            help="the text to learn from, and keys of the recipe that are known already, e.g. data.text=review",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="file for the recipe", show_default="standard output")
    ] = None,
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
    """
    from polyhead.starter.draft import draft_recipe

    files = [one for one in given if "=" not in one or Path(one).exists()]
    if output is not None and file_place(output, "--output", files).exists():
        raise UserError(f"--output {output} is there already; name another file, or remove it first")
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
    print(f"{output}; train it: polyhead train {shlex.quote(str(output))}", file=sys.stderr)
