"""``polyhead attend``: what every head looks at."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyhead.cli.lines import harmless, one_line
from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.places import file_place, own_files

MEAN = "mean"


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    source: Annotated[
        str, typer.Argument(metavar="TEXT", help="the source text, or the text of a model of one side")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="a translation of it, else the run's own; or for a classifier the second text of a pair",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="where the page goes", show_default="RUN/attention.html"),
    ] = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder", "self"] | None,
        typer.Option(
            help="attention shown in the terminal", show_default="cross, or self in a model of one side"
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="layer shown in the terminal, 1 is the first; or mean", show_default="the last"),
    ] = None,
    head: Annotated[str, typer.Option(help="head shown in the terminal, 1 is the first; or mean")] = MEAN,
) -> None:
    """Show what every head of every layer looks at while a text is translated, or read.

    Writes one self-contained page with all kinds of attention, and shows one map in the terminal.

    \b
    polyhead attend runs/multi30k "A dog barks."
    polyhead attend runs/multi30k "A dog barks." "Ein Hund bellt." --kind encoder --layer 1 --head 2
    polyhead attend runs/shakespeare "To be, or not to be"
    """
    for name, text in (("TEXT", source), ("TARGET", target)):
        if text is not None and not text.strip():
            raise UserError(f"{name} is empty: there is nothing to look at")
    from polyhead.analysis.attention_page import attention_page
    from polyhead.analysis.heat_map import attention_text, numbers
    from polyhead.loading import load

    written = file_place(out or directory / "attention.html", inputs=own_files(directory))
    loaded = load(directory, device="cpu")
    maps = loaded.attention_maps(source, target)
    wanted: str = kind or next(iter(maps), "attention")
    if wanted not in maps:
        there = f"; it has: {', '.join(maps)}" if maps else ", for none of its layers attends"
        raise UserError(f"this model has no {wanted} weights to show{there}")
    shown = maps[wanted]
    layers = numbers(shown, len(shown.weights))
    heads = range(1, len(shown.weights[0]) + 1)
    chosen = number("layer", str(layers[-1]) if layer is None else layer, layers), number("head", head, heads)
    own = one_line(loaded.translate([source])[0]) if target is None and "self" not in maps else None
    lead = (
        tr("Translated: {text}", text=own)
        if own is not None
        else ""
        if target is None
        else tr("Given: {text}", text=target)
    )
    attention_page(written, list(maps.values()), title=source, lead=lead)
    if own is not None:
        print(f"{harmless(own)}\n")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(attention_text(shown, *chosen, width=width))
    print("\n" + tr("all layers and heads: {path}", path=written))


def number(what: str, typed: str, names: Sequence[int]) -> int | None:
    """The place of the layer or head that was typed; None is the mean of all."""
    if typed == MEAN:
        return None
    if not typed.isdecimal() or int(typed) not in names:
        n = len(names)
        there = f"1 to {n}" if names[-1] == n else ", ".join(map(str, names))
        raise UserError(f"--{what}: there is no {what} {typed!r} to show; there are {there}, and {MEAN}")
    return names.index(int(typed))
