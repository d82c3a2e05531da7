"""``polyhead compare``: compare designs on your own text."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.error_handler import EXIT_FAILED, EXIT_INTERRUPTED
from polyhead.compare.plan import MAX_SEEDS, make_plan
from polyhead.compare.sweep import read_axis, read_budget, read_design
from polyhead.core.errors import UserError


def run(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="path of a recipe (YAML): the base design")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="changes to the recipe for all designs")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE", help="recipe key and its values, e.g. norm=layernorm,rmsnorm"
        ),
    ] = None,
    design: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: KEY=VALUE ...'", help="additional design with several changes"),
    ] = None,
    full_grid: Annotated[
        bool,
        typer.Option(
            "--grid/--one-at-a-time",
            help="all combinations of values, or each value alone, changed from the base design",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="training budget of each design: 10m, 2000steps, 3Mtokens or 1e14flops",
            show_default="steps of the recipe",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=MAX_SEEDS, help="number of seeds that each design is trained with")
    ] = 1,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="params",
            help="rescale d_ff to match the number of parameters of the base design within 1 %",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="output directory of the comparison", show_default="runs/compare-NAME"
        ),
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="list the designs and exit")] = False,
    cell: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train several designs on your text and evaluate all of them the same way.

    Every design gets the same text in the same order, the same seeds and an equal budget. Ctrl-C saves; the
    same command resumes, and finished trials are not run again. The result is a table, and compare.html,
    .json and .csv.

    \b
    polyhead compare recipe.yaml --vary norm=layernorm,rmsnorm --vary norm_first=true,false --budget 10m
    polyhead compare recipe.yaml --vary 'position=sinusoidal,{name: rope, theta: 1e5}' --seeds 3
    polyhead compare recipe.yaml --design 'wide: d_model=256 d_ff=512' --match params --budget 3Mtokens
    """
    if cell is not None:
        run_trial_process(cell)
        return
    if recipe is None:
        raise UserError(
            "RECIPE: missing; e.g. polyhead compare recipe.yaml --vary norm=layernorm,rmsnorm --budget 10m"
        )
    if match not in (None, "params"):
        raise UserError(f"--match {match}: only 'params' is supported")
    plan = make_plan(
        recipe,
        changes or [],
        [read_axis(text) for text in vary or []],
        [read_design(text) for text in design or []],
        full_grid=full_grid,
        budget=read_budget(budget),
        seeds=seeds,
        match=match is not None,
        out=output,
    )
    from polyhead.compare.report.text_table import format_table
    from polyhead.compare.run import format_plan, prepare_comparison, run_trials

    plan = prepare_comparison(plan)
    if len(plan.designs) == len(plan.seeds) == 1:
        raise UserError(
            "one design alone cannot be compared; vary a key: --vary norm=layernorm,rmsnorm, or add a "
            "design: --design 'wide: d_model=256 d_ff=512'"
        )
    if plan_only:
        print(format_plan(plan))
        return
    rows, finished = run_trials(plan)
    print(format_table(rows, plan, bold=sys.stdout.isatty()))
    if not finished:
        print("The same command continues from there.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED)
    print(f"\n{shlex.quote(str(plan.out / 'compare.html'))}")
    if all(row["status"] != "done" for row in rows):
        raise typer.Exit(EXIT_FAILED)


def run_trial_process(directory: Path) -> None:
    """Run one trial, in a process of its own."""
    from polyhead.compare.trial import die_with_parent
    from polyhead.compare.trial import run_trial as work

    die_with_parent()
    if not work(directory):
        raise typer.Exit(EXIT_INTERRUPTED)
