"""A comparison as one call, and its result as an object that prints as the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhead import document
from polyhead.compare.axes import Axis, read_axis, read_design
from polyhead.compare.budget import read_budget
from polyhead.compare.plan import Plan, make_plan
from polyhead.compare.run import compare, prepare
from polyhead.compare.table import table
from polyhead.errors import UserError, check_whole, show


class Comparison(NamedTuple):
    """The rows of a comparison, best first, and where its files are."""

    rows: list[dict[str, Any]]
    plan: Plan
    finished: bool  # False where Ctrl-C stopped it

    @property
    def out(self) -> Path:
        """The directory with compare.html, compare.json, compare.csv and the trained runs."""
        return self.plan.out

    def __repr__(self) -> str:
        return f"{table(self.rows, self.plan)}\n\n{self.out / 'compare.html'}"


def run_comparison(
    recipe: Path,
    changes: list[str],
    *,
    vary: Mapping[str, Sequence[Any]],
    designs: Mapping[str, Sequence[str]],
    grid: bool,
    budget: str | None,
    seeds: int,
    match: str | None,
    out: Path | None,
) -> Comparison:
    """Train and measure every design; what is finished already in the directory is not run again."""
    if match not in (None, "params"):
        raise UserError(f"match is {show(match)}: only 'params' can be made equal")
    if not isinstance(vary, Mapping) or not isinstance(designs, Mapping):
        raise UserError(
            "vary is a mapping of keys to lists of values, as {'norm': ['layernorm', 'rmsnorm']}, and designs one of names "
            "to lists of changes"
        )
    check_whole("seeds", seeds, 1)
    plan = make_plan(
        recipe,
        changes,
        [_axis(key, values) for key, values in vary.items()],
        [read_design(f"{name}: {' '.join(_listed(name, own))}") for name, own in designs.items()],
        full_grid=grid,
        budget=read_budget(budget),
        seeds=seeds,
        match=match is not None,
        out=out,
    )
    plan = prepare(plan)
    rows, finished = compare(plan)
    return Comparison(rows, plan, finished)


def _axis(key: str, values: Sequence[Any]) -> Axis:
    written = (one if isinstance(one, str) else document.write_value(one) for one in _listed(key, values))
    return read_axis(f"{key}={','.join(written)}")


def _listed(name: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"{name}: wanted a list of values, got {show(values)}")
    return values
