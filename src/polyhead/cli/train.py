"""``polyhead train``: train a model from a recipe."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from polyhead.cli.error_handler import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, describe_error, print_error
from polyhead.cli.formatting import list_keys
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe
from polyhead.train.distributed import launch
from polyhead.train.signals import interrupt_on_signal


def show_keys(value: bool) -> None:
    """Print every key of a recipe and exit."""
    if value:
        print("\n".join(list_keys()))
        raise typer.Exit


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="path of a recipe (YAML)")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="changes to the recipe, e.g. model.d_model=256"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume from the newest checkpoint, bit for bit, or start a run")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="number of processes on this machine that train together, each on a share of the batches",
        ),
    ] = 1,
    log: Annotated[
        Literal["wandb", "mlflow"] | None,
        typer.Option(help="also log the metrics to Weights & Biases or MLflow; same as train.log"),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--keys", help="list all recipe keys and exit", callback=show_keys, is_eager=True)
    ] = False,
) -> None:
    """Train a model from raw text with a recipe.

    The run is written to runs/NAME, where NAME is that of the recipe's file; out=DIRECTORY chooses another.

    Ctrl-C and SIGTERM finish the step, save a checkpoint and exit with code 130; --resume continues from it.
    If there is no run yet, --resume starts one, so a job scheduler can restart with the same command.

    \b
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k model.position=rope out=runs/rope
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k --resume
    polyhead train recipes/multi30k-en-de.yaml data.root=multi30k --processes 4

    The run's report.html is written at each evaluation; see also polyhead report and polyhead serve --runs.
    """
    changes = [*(changes or []), *([f"train.log={log}"] if log else [])]
    if launch.count_processes() > 1:
        launch.hide_torch_warnings()
    # until step 1, when training installs its own handler; with several processes the launcher has one
    with interrupt_on_signal() if launch.count_processes() == 1 else nullcontext():
        loaded = load_recipe(recipe, changes, from_run=resume)
        if resume and not any(change.startswith("out=") for change in changes):
            check_resume_directory(recipe, loaded.out)
        if processes > 1:
            arguments = [str(recipe), *changes, *(["--resume"] if resume else [])]
            raise typer.Exit(launch.launch(arguments, processes, loaded.train.timeout))
        if launch.count_processes() > 1:
            run_worker(loaded, resume)
        from polyhead.train.run_training import run_training

        _, outcome = run_training(loaded, resume=resume)
    if outcome.status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def check_resume_directory(recipe: Path, out: Path) -> None:
    """Check that a recipe in a run directory has that directory as ``out``.

    The recipe of a run that was copied or moved still contains the old path.
    """
    here = recipe.parent
    if (here / "checkpoints").is_dir() and here.resolve() != out.resolve():
        raise UserError(
            f"--resume: {recipe} is in a run but has out: {out}, another directory; to continue here set "
            f"out={here}, to continue there out={out}"
        )


def run_worker(recipe: Recipe, resume: bool) -> NoReturn:
    """Train as one of several processes. Exits at once, without waiting for pending messages."""
    launch.die_with_launcher()
    from polyhead.train.distributed.torch_process_group import PeerLostError, init_process_group
    from polyhead.train.run_training import run_training

    code = EXIT_OK
    try:
        with init_process_group(recipe.train.timeout) as ranks:
            _, outcome = run_training(recipe, resume=resume or launch.is_restarted(), ranks=ranks)
        if outcome.status == "interrupted":
            code = EXIT_INTERRUPTED
    except PeerLostError as error:
        code = launch.RANK_LOST
        if str(error):
            code = print_error(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        code = print_error("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        code = print_error(*describe_error(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
