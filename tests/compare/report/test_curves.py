"""Tests of compare/report/curves.py."""

from __future__ import annotations

from tests.compare.result_rows import row

from polyhead.compare.report.charts import average_curves, flops_per_step, trim_start
from polyhead.viz.plot import Curve


def test_seeds_are_averaged_in_the_curve() -> None:
    two = row("x", 1.0, curves=[[[10, 60.0, 3.0], [20, 120.0, 2.0]], [[10, 120.0, 5.0], [20, 240.0, None]]])
    assert average_curves(two, "steps") == [(10, 4.0), (20, 2.0)]
    assert average_curves(two, "time") == [(1.5, 4.0), (2.0, 2.0)]
    assert flops_per_step(two) == 3 * 7e6 * 1000
    assert flops_per_step({**two, "times_forward": 2}) == 2 * 7e6 * 1000


def test_the_first_fall_is_left_out_but_no_curve_is() -> None:
    curves = [Curve("a", [(1, 9.0), (2, 3.0), (3, 2.0)]), Curve("b", [(1, 9.0), (2, 8.0), (3, 4.0)])]
    assert [c.points for c in trim_start(curves)] == [[(2, 3.0), (3, 2.0)], [(3, 4.0)]]
