import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from polyhead.viz import plot


def path_points(svg):
    paths = [e.get("d", "") for e in ElementTree.fromstring(svg).iter("path")]
    return [[tuple(map(float, p.split())) for p in d[1:].split("L")] for d in paths]


def list_ticks(svg, anchor, attribute):
    texts = [e for e in ElementTree.fromstring(svg).iter("text") if e.get("class") == f"tick {anchor}"]
    return {float(e.text.replace(",", "")): float(e.get(attribute)) for e in texts}


def is_log(svg, axis="data-y"):
    return ElementTree.fromstring(svg).get(axis).endswith(" 1")


def test_scales():
    scale = plot.Scale(10, 20, 100, 300)
    assert [scale.to_pixel(v) for v in (10, 15, 20)] == [100, 200, 300]
    assert plot.Scale(0, 4, 300, 100).to_pixel(1) == 250  # y grows downward on a screen
    scale = plot.Scale(1, 100, 0, 200, is_log=True)
    assert [round(scale.to_pixel(v), 9) for v in (1, 10, 100)] == [0, 100, 200]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.31, 0.34, [0.31, 0.315, 0.32, 0.325, 0.33, 0.335, 0.34]),
        (12, 2987, [0, 500, 1000, 1500, 2000, 2500, 3000]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
    ],
)
def test_linear_ticks_are_round_and_enclose_values(low, high, expected):
    assert plot.linear_ticks(low, high, 6) == pytest.approx(expected)


def test_ticks_of_constants_and_logarithms_enclose_values():
    for value in (0.0, 5.0, -2.5):
        ticks = plot.linear_ticks(value, value)
        assert ticks[0] < value < ticks[-1]
    assert plot.log_ticks(0.03, 8) == [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    assert plot.power_ticks(0.03, 8) == [0.01, 0.1, 1, 10]
    assert plot.power_ticks(1e-7, 1e-3) == [1e-7, 1e-6, 1e-5, 1e-4, 1e-3]
    assert plot.power_ticks(0.1, 0.1) == [0.1, 1]
    for a, b in ((3.7, 3.7 + 5e-16), (2e-13, 2e-13), (0, 3e-13), (1e9, 1e9 + 1e-6)):
        for axis in (plot.enclosing_axis, plot.padded_axis):
            heights = [axis((a, b), 0, 100, (50, 28)).scale.to_pixel(value) for value in (a, b)]
            assert (abs(heights[1] - heights[0]) < 0.1) == (a != 0)  # flat if they differ only by rounding
    # 21 ticks of 1, 2 and 5 would not fit
    svg = plot.line_chart([plot.Curve("a", [(0, 1e-7), (1, 0.5)])], "x", "y", 380, 260)
    labels = re.findall(r'tick end"[^>]*>([^<]*)<', svg)
    assert labels == ["1e-07", "1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]


def test_points_are_at_values_of_axes():
    points = [(0.0, 6.0), (250.0, 3.0), (1000.0, 1.0)]
    svg = plot.line_chart([plot.Curve("training", points)], "step", "loss", 800, 300)
    (pixels,) = path_points(svg)

    def interpolate(value, ticks):
        (low, low_pixel), (high, high_pixel) = min(ticks.items()), max(ticks.items())
        return low_pixel + (value - low) / (high - low) * (high_pixel - low_pixel)

    x_ticks, y_ticks = list_ticks(svg, "middle", "x"), list_ticks(svg, "end", "y")
    # the base line of a label is 4 below its grid line
    expected = [(interpolate(x, x_ticks), interpolate(y, y_ticks) - 4) for x, y in points]
    assert pixels == [pytest.approx(point, abs=0.2) for point in expected]
    # the script has the same scales
    root = ElementTree.fromstring(svg)
    x, y = (plot.Scale(*map(float, root.get(name).split()[:4])) for name in ("data-x", "data-y"))
    assert pixels == [(round(x.to_pixel(a), 1), round(y.to_pixel(b), 1)) for a, b in points]


def test_logarithmic_x_axis_has_equal_steps_for_doubling():
    def draw(points, width=800):
        return plot.line_chart([plot.Curve("a", points)], "N", "ms", width, 300, log_x=True)

    points = [(float(2**i), float(i)) for i in range(2, 11)]
    svg = draw(points)
    (pixels,) = path_points(svg)
    steps = [b[0] - a[0] for a, b in itertools.pairwise(pixels)]
    assert steps == pytest.approx([steps[0]] * 8, abs=0.2)
    assert list(list_ticks(svg, "middle", "x")) == [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert list(list_ticks(draw(points, 380), "middle", "x")) == [4, 16, 64, 256, 1024]
    many_svg = draw([(float(n), 1.0) for n in range(4, 1025)])
    assert list(list_ticks(many_svg, "middle", "x")) == [5, 10, 20, 50, 100, 200, 500, 1000]
    assert 'data-x="4 1024 ' in svg and is_log(svg, "data-x")


def test_curves_are_within_frame_and_names_escaped():
    curve = plot.Curve("a", [(i, 5 * math.sin(i / 9) + i / 100) for i in range(300)])
    ((*pixels,),) = path_points(plot.line_chart([curve], "step", "value", 700, 300))
    assert all(0 <= x <= 700 and 0 <= y <= 300 for x, y in pixels)
    steep = [plot.Curve("training", [(0, 8.0), (1, 0.08)])]
    assert is_log(plot.line_chart(steep, "step", "loss"))
    assert not is_log(plot.line_chart(steep, "step", "loss", from_zero=True))
    svg = plot.line_chart([plot.Curve("a", [(7, 3.0)])], "step", "loss")
    assert len(re.findall("<circle", svg)) == 1 and "nan" not in svg
    svg = plot.line_chart([plot.Curve("<b>", [(0, 1.0), (1, 2.0)])], "<i>", 'a"b')
    assert "<b>" not in svg and "<i>" not in svg
    ElementTree.fromstring(svg)


def test_points_are_averaged_and_numbers_short():
    assert plot.downsample([(0, 1.0), (1, float("nan")), (2, 3.0), (3, float("inf"))]) == [(0, 1.0), (2, 3.0)]
    points = plot.downsample([(i, float(i)) for i in range(1000)], max_points=10)
    assert points[0] == (49.5, 49.5) and len(points) == 10
    values = [12000, 12000.4, 0, 0.03121, 97.34, 3e-5, 2.0]
    expected = ["12,000", "12,000", "0", "0.0312", "97.3", "3e-05", "2"]
    assert [plot.format_number(value) for value in values] == expected
