"""``polyhead compare``: designs side by side on one's own text."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.guard import FAILED, INTERRUPTED
from polyhead.compare.axes import read_axis, read_design
from polyhead.compare.budget import read_budget
from polyhead.compare.plan import make_plan
from polyhead.errors import UserError


def run(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="the recipe, a YAML file: the base design")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="changes to the recipe that hold for every design"),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE", help="a key of the recipe and its values, e.g. norm=layernorm,rmsnorm"
        ),
    ] = None,
    design: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: KEY=VALUE ...'", help="one design more, with several changes at once"),
    ] = None,
    full_grid: Annotated[
        bool,
        typer.Option("--grid/--one-at-a-time", help="all combinations, or each value alone around the base"),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="for each design: 10m, 2000steps, 3Mtokens or 1e14flops",
            show_default="the steps of the recipe",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="how often each design is trained")] = 1,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="params", help="rescale d_ff so that parameters agree with the base's within 1 %"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="directory of the comparison", show_default="runs/compare-NAME"),
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="list the designs and end")] = False,
    cell: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train designs side by side on your text and measure them all the same way.

    Every design gets the same text in the same order, the same seeds and an equal budget. Ctrl-C saves; the same
    command goes on, and what is finished is not run again. The result is a table, and compare.html, .json and .csv.

    \b
    polyhead compare recipe.yaml --vary norm=layernorm,rmsnorm --vary norm_first=true,false --budget 10m
    polyhead compare recipe.yaml --vary 'position=sinusoidal,{name: rope, theta: 1e5}' --budget 2000steps --seeds 3
    polyhead compare recipe.yaml --design 'wide: d_model=256 d_ff=512' --match params --budget 3Mtokens
    """
    if cell is not None:
        run_cell(cell)
        return
    if recipe is None:
        raise UserError(
            "name a recipe: polyhead compare recipe.yaml --vary norm=layernorm,rmsnorm --budget 10m"
        )
    if match not in (None, "params"):
        raise UserError(f"--match {match}: only 'params' can be made equal")
    plan = make_plan(
        recipe,
        changes or [],
        [read_axis(text) for text in vary or []],
        [read_design(text) for text in design or []],
        full_grid=full_grid,
        budget=read_budget(budget),
        seeds=seeds,
        match=match is not None,
        out=out,
    )
    from polyhead.compare.run import compare, prepare, show_plan
    from polyhead.compare.table import table

    plan = prepare(plan)
    if plan_only:
        print(show_plan(plan))
        return
    rows, finished = compare(plan)
    print(table(rows, plan, bold=sys.stdout.isatty()))
    if not finished:
        print("The same command goes on from there.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    print(f"\n{shlex.quote(str(plan.out / 'compare.html'))}")
    if all(row["status"] != "done" for row in rows):
        raise typer.Exit(FAILED)


def run_cell(directory: Path) -> None:
    """The work of one process of a comparison."""
    from polyhead.compare.cell import end_with_parent
    from polyhead.compare.cell import run_cell as work

    end_with_parent()
    if not work(directory):
        raise typer.Exit(INTERRUPTED)
