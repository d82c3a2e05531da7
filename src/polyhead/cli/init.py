"""``polyhead init``: write a recipe that fits given text files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.output_paths import check_output_file, write_atomic


def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE... [KEY=VALUE]...",
            help="training files, and recipe keys to set, e.g. data.text=review",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="path of the recipe", show_default="standard output")
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example", help="write the example recipe with this name; without a name, list the examples"
        ),
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="FORMAT",
            help="choose components that polyhead export can write in this format: hf, ctranslate2, "
            "onnx or gguf",
            show_default="the best components measured, for any format",
        ),
    ] = None,
    both_ways: Annotated[
        bool,
        typer.Option("--both-ways", help="translate each pair of files in both directions, with one model"),
    ] = False,
) -> None:
    """Inspect your own text and write a recipe for it: a task that it suits, and a model size that fits.

    Two files with the same number of lines give a translation model, plain text a language model, a table
    with labels a classifier, a table with two texts a translation model, a table with one text a language
    model, conversations a chat model, CoNLL files or texts with spans a token classifier. Columns are
    detected by their names or content; task=... and data.text=... override this.

    Pairs of files in three languages or more give one translator with a token for each target language.

    \b
    polyhead init train.en train.zh --output mine.yaml
    polyhead init reviews.csv data.text=review data.label=stars > reviews.yaml
    polyhead init news.en news.de talks.en talks.zh --both-ways --output many.yaml
    polyhead init articles.jsonl task=masked-lm
    polyhead init train.en train.zh --for hf --output mine.yaml
    polyhead init --example
    polyhead init --example dates-en-zh --output dates.yaml
    """
    arguments = arguments or []
    if example:
        show_example(arguments, output)
        return
    from polyhead.autoconfig.draft_recipe import draft_recipe

    files = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    check_output(output, files)
    changes = [argument for argument in arguments if argument not in files]
    draft = draft_recipe(files, changes, target, str(output or "mine.yaml"), both_ways)
    if output is None:
        print(draft.text, end="")
        for note in (
            [] if sys.stdout.isatty() else draft.notes
        ):  # in a terminal they are visible above the recipe
            print(f"polyhead: {note}", file=sys.stderr)
        return
    write_atomic(output, draft.text.encode())
    for line in draft.text.split("\n")[: 1 + len(draft.notes)]:
        print(line.removeprefix("# "), file=sys.stderr)
    train = f"polyhead train {shlex.quote(str(output))}"
    print(tr("{file}; train it: {command}", file=output, command=train), file=sys.stderr)


def show_example(names: Sequence[str], output: Path | None) -> None:
    """List the example recipes, or print or write the named one."""
    from polyhead.autoconfig.draft_recipe import list_examples, read_example, write_example

    if not names:
        titles = list_examples()
        width = max(map(len, titles))
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
        return
    if len(names) > 1:
        raise UserError(
            f"--example takes one name, got {', '.join(names)}; to override keys use polyhead train"
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
    """Raise a UserError if the recipe cannot be written there, or if the file exists."""
    if output is not None and check_output_file(output, "--output", inputs).exists():
        raise UserError(f"--output {output} already exists; choose another file, or remove it first")
