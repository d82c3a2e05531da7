import random
import re

from tests.compare.result_rows import make_row

from polyhead.compare.report.charts import (
    COST_AXES,
    average_curves,
    flops_per_step,
    make_pareto_chart,
    trim_start,
)
from polyhead.compare.tasks.base import get_compared_task
from polyhead.viz.plot import Curve
from polyhead.viz.plots import ParetoPoint, find_frontier, pareto_svg


def test_curve_is_mean_of_seeds():
    curves = [[[10, 60.0, 3.0], [20, 120.0, 2.0]], [[10, 120.0, 5.0], [20, 240.0, None]]]
    row = make_row("x", 1.0, curves=curves)
    assert average_curves(row, "steps") == [(10, 4.0), (20, 2.0)]
    assert average_curves(row, "time") == [(1.5, 4.0), (2.0, 2.0)]
    assert flops_per_step(row) == 3 * 7e6 * 1000
    assert flops_per_step({**row, "times_forward": 2}) == 2 * 7e6 * 1000
    # the initial drop is trimmed
    curves = [Curve("a", [(1, 9.0), (2, 3.0), (3, 2.0)]), Curve("b", [(1, 9.0), (2, 8.0), (3, 4.0)])]
    assert [c.points for c in trim_start(curves)] == [[(2, 3.0), (3, 2.0)], [(3, 4.0)]]


def test_frontier_is_undominated_points():
    random.seed(2)
    points = [ParetoPoint(i, str(i), random.random(), random.random(), (0, 1)) for i in range(60)]
    for less_is_better in (True, False):
        sign = 1 if less_is_better else -1
        expected = [
            p
            for p in points
            if not any(q.x <= p.x and sign * q.y <= sign * p.y and q is not p for q in points)
        ]
        assert find_frontier(points, less_is_better) == sorted(expected, key=lambda p: p.x)
    # ticks of nearly equal costs are distinct
    rows = [make_row(str(n), 1.0 + i, parameters=n) for i, n in enumerate((1_581_000.0, 1_582_000.0))]
    measure = get_compared_task("translation").measures[0]
    svg = pareto_svg(make_pareto_chart(rows, measure, COST_AXES[0]), 940, 400)
    labels = re.findall(r'class="tick middle"[^>]*>([^<]+)<', svg)
    assert len(set(labels)) == len(labels) > 3
