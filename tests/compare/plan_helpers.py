"""Shared by the tests of plan."""

from __future__ import annotations

from pathlib import Path

from polyhead.compare.budget import read_budget
from polyhead.compare.plan import ComparisonPlan, make_plan
from polyhead.compare.sweep import Axis, DesignSpec


def plan(
    *axes: Axis,
    designs: tuple[DesignSpec, ...] = (),
    changes: tuple[str, ...] = (),
    grid: bool = False,
    budget: str = "20steps",
) -> ComparisonPlan:
    return make_plan(
        Path("toy.yaml"),
        changes,
        axes,
        designs,
        full_grid=grid,
        budget=read_budget(budget),
        seeds=2,
        match=False,
        out=None,
    )
