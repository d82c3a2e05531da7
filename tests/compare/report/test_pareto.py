"""Tests of compare/report/pareto.py."""

from __future__ import annotations

import random
import re

from tests.compare.result_rows import row

from polyhead.compare.report.charts import COST_AXES, make_pareto_chart
from polyhead.compare.tasks.base import get_compared_task
from polyhead.viz.pareto_plot import ParetoPoint, find_frontier, pareto_svg


def test_the_frontier_is_what_nobody_beats_in_both() -> None:
    random.seed(2)
    dots = [ParetoPoint(i, str(i), random.random(), random.random(), (0, 1)) for i in range(60)]
    for less in (True, False):
        sign = 1 if less else -1
        unbeaten = [
            d for d in dots if not any(o.x <= d.x and sign * o.y <= sign * d.y and o is not d for o in dots)
        ]
        assert find_frontier(dots, less) == sorted(unbeaten, key=lambda d: d.x)


def test_costs_that_are_almost_equal_have_different_ticks() -> None:
    rows = [row(str(n), 1.0 + i, parameters=n) for i, n in enumerate((1_581_000.0, 1_582_000.0))]
    svg = pareto_svg(
        make_pareto_chart(rows, get_compared_task("translation").measures[0], COST_AXES[0]), 940, 400
    )
    labels = re.findall(r'class="tick middle"[^>]*>([^<]+)<', svg)
    assert len(labels) > 3
    assert len(set(labels)) == len(labels)
