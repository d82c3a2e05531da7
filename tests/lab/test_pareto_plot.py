import math
import re

import pytest

from polyhead.lab.page import make_error_chart
from polyhead.lab.result import ParetoPlot
from polyhead.viz.pareto_plot import find_frontier, pareto_svg

FRONT = ParetoPlot("t", "KiB", "KL", {"a": [("a", 100.0, 1e-12), ("a 1/2", 50.0, 1e-3)],
    "b <i>": [("b <i> 1/2", 60.0, 1e-2), ("b <i> 1/4", 10.0, 1.0)]})  # fmt: skip


def test_the_front_has_those_that_no_other_one_beats():
    assert [dot.name for dot in find_frontier(make_error_chart(FRONT).points, True)] == [
        "b <i> 1/4",
        "a 1/2",
        "a",
    ]
    # both no more than rounding
    equal = ParetoPlot("t", "x", "y", {"a": [("a", 2.0, 1e-12)], "b": [("b", 1.0, 1e-9)]})
    assert [dot.name for dot in find_frontier(make_error_chart(equal).points, True)] == ["b"]


def test_points_of_the_front_stand_where_their_values_are():
    chart = make_error_chart(FRONT)
    assert [point.label for point in chart.points] == ["a", "1/2", "b <i> 1/2", "1/4"]
    svg = pareto_svg(chart, 900, 460)
    assert "<i>" not in svg
    assert "a: KL ≤1e-07, KiB 100" in svg
    places = [
        (float(x), float(y)) for x, y in re.findall(r'class="dot c\d" cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = places
    # logarithms of both: from 100 to 10 is as far as twice half of it; the error below the floor stands at
    # the floor
    assert (x0 - x1) / (x0 - x3) == pytest.approx(math.log10(2), abs=2e-3)
    assert (y1 - y0) / (y3 - y0) == pytest.approx(4 / 7, abs=2e-3)
    assert (y2 - y0) / (y3 - y0) == pytest.approx(5 / 7, abs=2e-3)
    assert x3 < x1 < x2 < x0
    assert y0 < y1 < y2 < y3  # better is up
