"""``polyhead train``: from a recipe to a finished run directory."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from polyhead.cli.guard import DONE, FAILED, INTERRUPTED, said, tell
from polyhead.cli.keys import keys
from polyhead.errors import UserError
from polyhead.recipe import Recipe, load_recipe
from polyhead.train import launch
from polyhead.train.signals import end_on_signal


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
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="processes of this machine that train together, each with its share"
        ),
    ] = 1,
    log: Annotated[
        Literal["wandb", "mlflow"] | None,
        typer.Option(help="send the numbers to Weights & Biases or MLflow as well; as train.log"),
    ] = None,
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
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k --processes 4

    The run's report.html is written at each evaluation; see also polyhead report, and polyhead serve --runs.
    """
    changes = [*(changes or []), *([f"train.log={log}"] if log else [])]
    # until the first step, from which on the training hears them itself; several processes have their launcher
    with end_on_signal() if launch.processes() == 1 else nullcontext():
        read = load_recipe(recipe, changes, made=resume)
        if resume and not any(change.startswith("out=") for change in changes):
            check_beside(recipe, read.out)
        if processes > 1:
            typed = [str(recipe), *changes, *(["--resume"] if resume else [])]
            raise typer.Exit(launch.launch(typed, processes))
        if launch.processes() > 1:
            together(read, resume)
        from polyhead.train.pipeline import run_training

        _, outcome = run_training(read, resume=resume)
    if outcome.how == "interrupted":
        raise typer.Exit(INTERRUPTED)


def check_beside(recipe: Path, out: Path) -> None:
    """A recipe that lies in a run is that run's: of one that was copied or moved the recipe still names the old place."""
    here = recipe.parent
    if (here / "checkpoints").is_dir() and here.resolve() != out.resolve():
        raise UserError(
            f"--resume: {recipe} lies in a run and says out: {out}, which is another place; "
            f"to go on here give out={here}, to go on there out={out}"
        )


def together(recipe: Recipe, resume: bool) -> NoReturn:
    """The work of one of several processes. It leaves at once, without waiting for messages that are still under way."""
    launch.end_with_launcher()
    from polyhead.train.pipeline import run_training
    from polyhead.train.several import Lost, joined

    code = DONE
    try:
        with joined(recipe.train.timeout) as ranks:
            restarted = launch.restarted() and (recipe.out / "recipe.yaml").is_file()
            _, outcome = run_training(recipe, resume=resume or restarted, ranks=ranks)
        if outcome.how == "interrupted":
            code = INTERRUPTED
    except Lost as error:
        code = launch.LOST
        if str(error):
            code = tell(str(error), FAILED)
    except KeyboardInterrupt:
        code = tell("interrupted", INTERRUPTED)
    except Exception as error:
        code = tell(*said(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
