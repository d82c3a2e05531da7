"""``polyhead train``: from a recipe to a finished run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.guard import INTERRUPTED
from polyhead.cli.keys import keys
from polyhead.recipe import load_recipe


def show_keys(wanted: bool) -> None:
    """Print every key of a recipe and end."""
    if wanted:
        print("\n".join(keys()))
        raise typer.Exit


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="the recipe, a YAML file")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="changes to the recipe, e.g. model.d_model=256"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the newest checkpoint of the run, bit for bit")
    ] = False,
    listing: Annotated[
        bool,
        typer.Option("--keys", help="list every key of a recipe and end", callback=show_keys, is_eager=True),
    ] = False,
) -> None:
    """Train a model from raw text, as a recipe says.

    Ctrl-C and SIGTERM finish the step, save a checkpoint and end with exit code 130; --resume goes on from there.

    \b
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k model.position=rope train.steps=500 out=runs/rope
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k --resume
    """
    read = load_recipe(recipe, changes)
    from polyhead.train.pipeline import run_training

    _, outcome = run_training(read, resume=resume)
    if outcome.how == "interrupted":
        raise typer.Exit(INTERRUPTED)
