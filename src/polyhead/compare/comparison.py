"""Run a comparison with one call; the result prints as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.compare.budget import read_budget
from polyhead.compare.plan import ComparisonPlan, make_plan
from polyhead.compare.report.text_table import format_table
from polyhead.compare.run import prepare_comparison, run_trials
from polyhead.compare.sweep import Axis, read_axis, read_design
from polyhead.config import yaml_io
from polyhead.core.errors import UserError, check_int, format_value


class Comparison(NamedTuple):
    """Result of a comparison: its rows, best first, and its plan."""

    rows: list[dict[str, Any]]
    plan: ComparisonPlan
    finished: bool  # False if interrupted by Ctrl-C

    @property
    def out(self) -> Path:
        """Directory with compare.html, compare.json, compare.csv and the trained runs."""
        return self.plan.out

    def __repr__(self) -> str:
        return f"{format_table(self.rows, self.plan)}\n\n{self.out / 'compare.html'}"


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
    """Train and measure every design; trials that are finished in the output directory are not repeated."""
    if match not in (None, "params"):
        raise UserError(f"match is {format_value(match)}: only 'params' is supported")
    if not isinstance(vary, Mapping) or not isinstance(designs, Mapping):
        raise UserError(
            "vary must map keys to lists of values, e.g. {'norm': ['layernorm', 'rmsnorm']}, and designs "
            "must map names to lists of overrides"
        )
    check_int("seeds", seeds, 1)
    plan = make_plan(
        recipe,
        changes,
        [_make_axis(key, values) for key, values in vary.items()],
        [
            read_design(f"{name}: {' '.join(_check_list(name, design_changes))}")
            for name, design_changes in designs.items()
        ],
        full_grid=grid,
        budget=read_budget(budget),
        seeds=seeds,
        match=match is not None,
        out=out,
    )
    plan = prepare_comparison(plan)
    rows, finished = run_trials(plan)
    return Comparison(rows, plan, finished)


def _make_axis(key: str, values: Sequence[Any]) -> Axis:
    texts = (
        value if isinstance(value, str) else yaml_io.dump_yaml_value(value)
        for value in _check_list(key, values)
    )
    return read_axis(f"{key}={','.join(texts)}")


def _check_list(name: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"{name}: expected a list of values, got {format_value(values)}")
    return values
