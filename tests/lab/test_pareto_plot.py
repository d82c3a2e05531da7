import math
import re

import pytest

from polyhead.viz.plots import find_frontier, pareto_svg
from polyhead_lab.page import make_error_chart
from polyhead_lab.registry import ParetoPlot

POINTS = {
    "a": [("a", 100.0, 1e-12), ("a 1/2", 50.0, 1e-3)],
    "b <i>": [("b <i> 1/2", 60.0, 1e-2), ("b <i> 1/4", 10.0, 1.0)],
}
PLOT = ParetoPlot("t", "KiB", "KL", POINTS)


def test_points_and_frontier():
    chart = make_error_chart(PLOT)
    assert [point.label for point in chart.points] == ["a", "1/2", "b <i> 1/2", "1/4"]
    svg = pareto_svg(chart, 900, 460)
    assert "<i>" not in svg
    assert "a: KL ≤1e-07, KiB 100" in svg
    points = re.findall(r'class="dot c\d" cx="([\d.]+)" cy="([\d.]+)"', svg)
    (x0, x1, x2, x3), (y0, y1, y2, y3) = zip(*((float(x), float(y)) for x, y in points), strict=True)
    # 100 to 50 is log10(2) of 100 to 10; the smallest error is at the floor of 1e-7
    assert (x0 - x1) / (x0 - x3) == pytest.approx(math.log10(2), abs=2e-3)
    assert (y1 - y0) / (y3 - y0) == pytest.approx(4 / 7, abs=2e-3)
    assert (y2 - y0) / (y3 - y0) == pytest.approx(5 / 7, abs=2e-3)
    assert x3 < x1 < x2 < x0
    assert y0 < y1 < y2 < y3  # better is up
    frontier = find_frontier(make_error_chart(PLOT).points, True)
    assert [point.name for point in frontier] == ["b <i> 1/4", "a 1/2", "a"]
    # errors that are both rounding are equal
    equal = ParetoPlot("t", "x", "y", {"a": [("a", 2.0, 1e-12)], "b": [("b", 1.0, 1e-9)]})
    assert [point.name for point in find_frontier(make_error_chart(equal).points, True)] == ["b"]
