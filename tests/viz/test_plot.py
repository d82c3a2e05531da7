import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from polyhead.viz.plot import (
    Curve,
    Scale,
    downsample,
    format_number,
    line_chart,
    linear_ticks,
    log_ticks,
    power_ticks,
)


def path_points(svg):
    paths = [e.get("d", "") for e in ElementTree.fromstring(svg).iter("path")]
    return [[tuple(map(float, p.split())) for p in d[1:].split("L")] for d in paths]


def tick_positions(svg, anchor, attribute):
    texts = [e for e in ElementTree.fromstring(svg).iter("text") if e.get("class") == f"tick {anchor}"]
    return {float((e.text or "").replace(",", "")): float(e.get(attribute, "nan")) for e in texts}


def test_a_scale_is_linear_between_its_ends():
    scale = Scale(10, 20, 100, 300)
    assert [scale.to_pixel(v) for v in (10, 15, 20)] == [100, 200, 300]
    assert Scale(0, 4, 300, 100).to_pixel(1) == 250  # upside down, as y is on a screen


def test_a_logarithmic_scale_gives_equal_ratios_equal_distances():
    scale = Scale(1, 100, 0, 200, is_log=True)
    assert [round(scale.to_pixel(v), 9) for v in (1, 10, 100)] == [0, 100, 200]


@pytest.mark.parametrize(
    ("lo", "hi", "wanted"),
    [
        (0, 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.31, 0.34, [0.31, 0.315, 0.32, 0.325, 0.33, 0.335, 0.34]),
        (12, 2987, [0, 500, 1000, 1500, 2000, 2500, 3000]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(lo, hi, wanted):
    assert linear_ticks(lo, hi, 6) == pytest.approx(wanted)


def test_ticks_of_a_constant_enclose_it():
    for value in (0.0, 5.0, -2.5):
        found = linear_ticks(value, value)
        assert found[0] < value < found[-1]


def test_logarithmic_ticks_enclose_the_values():
    assert log_ticks(0.03, 8) == [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]


def test_powers_of_ten_enclose_the_values():
    assert power_ticks(0.03, 8) == [0.01, 0.1, 1, 10]
    assert power_ticks(1e-7, 1e-3) == [1e-7, 1e-6, 1e-5, 1e-4, 1e-3]
    assert power_ticks(0.1, 0.1) == [0.1, 1]
    # 21 ticks of 1, 2 and 5 would not fit
    svg = line_chart([Curve("a", [(0, 1e-7), (1, 0.5)])], "x", "y", 380, 260)
    assert re.findall(r'tick end"[^>]*>([^<]*)<', svg) == [
        "1e-07",
        "1e-06",
        "1e-05",
        "0.0001",
        "0.001",
        "0.01",
        "0.1",
        "1",
    ]


def test_the_drawn_points_are_the_values_on_the_drawn_axes():
    points = [(0.0, 6.0), (250.0, 3.0), (1000.0, 1.0)]
    svg = line_chart([Curve("training", points)], "step", "loss", 800, 300)
    across, down = tick_positions(svg, "middle", "x"), tick_positions(svg, "end", "y")
    (drawn,) = path_points(svg)

    def between(value, at):
        (lo, lo_pixel), (hi, hi_pixel) = min(at.items()), max(at.items())
        return lo_pixel + (value - lo) / (hi - lo) * (hi_pixel - lo_pixel)

    for (x, y), (px, py) in zip(points, drawn, strict=True):
        assert px == pytest.approx(between(x, across), abs=0.2)
        assert py == pytest.approx(
            between(y, down) - 4, abs=0.2
        )  # a number's base line is 4 below its grid line


def test_the_script_is_given_the_scales_that_were_drawn():
    svg = line_chart([Curve("a", [(0, 1.0), (100, 2.0)])], "step", "loss", 800, 300)
    root = ElementTree.fromstring(svg)
    x, y = (Scale(*map(float, root.get(name, "").split()[:4])) for name in ("data-x", "data-y"))
    assert path_points(svg) == [
        [(round(x.to_pixel(a), 1), round(y.to_pixel(b), 1)) for a, b in ((0, 1.0), (100, 2.0))]
    ]


def test_a_quantity_that_doubles_is_drawn_in_equal_strides_where_that_is_wanted():
    points = [(float(2**i), float(i)) for i in range(2, 11)]
    svg = line_chart([Curve("a", points)], "N", "ms", 800, 300, log_x=True)
    ((drawn),) = path_points(svg)
    strides = [b[0] - a[0] for a, b in itertools.pairwise(drawn)]
    assert strides == pytest.approx([strides[0]] * 8, abs=0.2)
    assert list(tick_positions(svg, "middle", "x")) == [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    narrow = line_chart([Curve("a", points)], "N", "ms", 380, 300, log_x=True)
    assert list(tick_positions(narrow, "middle", "x")) == [4, 16, 64, 256, 1024]
    many = line_chart(
        [Curve("a", [(float(n), 1.0) for n in range(4, 1025)])], "N", "ms", 800, 300, log_x=True
    )
    assert list(tick_positions(many, "middle", "x")) == [5, 10, 20, 50, 100, 200, 500, 1000]
    assert 'data-x="4 1024 ' in svg and re.search(r'data-x="[^"]* 1"', svg)  # the script is told so


def test_every_point_lies_inside_the_frame():
    curve = Curve("a", [(i, 5 * math.sin(i / 9) + i / 100) for i in range(300)])
    ((*pixels,),) = path_points(line_chart([curve], "step", "value", 700, 300))
    assert all(0 <= x <= 700 and 0 <= y <= 300 for x, y in pixels)


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis_unless_zero_is_wanted():
    falling = [Curve("training", [(0, 8.0), (1, 0.08)])]
    assert ElementTree.fromstring(line_chart(falling, "step", "loss")).get("data-y", "").endswith(" 1")
    assert (
        ElementTree.fromstring(line_chart(falling, "step", "loss", from_zero=True))
        .get("data-y", "")
        .endswith(" 0")
    )


def test_a_single_point_is_drawn():
    svg = line_chart([Curve("a", [(7, 3.0)])], "step", "loss")
    assert len(re.findall("<circle", svg)) == 1
    assert "nan" not in svg


def test_thinning_keeps_means_and_drops_what_is_no_number():
    assert downsample([(0, 1.0), (1, float("nan")), (2, 3.0), (3, float("inf"))]) == [(0, 1.0), (2, 3.0)]
    thinned = downsample([(i, float(i)) for i in range(1000)], max_points=10)
    assert thinned[0] == (49.5, 49.5)
    assert len(thinned) == 10


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12000, "12,000"),
        (12000.4, "12,000"),
        (0, "0"),
        (0.03121, "0.0312"),
        (97.34, "97.3"),
        (3e-5, "3e-05"),
        (2.0, "2"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert format_number(value) == text


def test_names_are_escaped():
    svg = line_chart([Curve("<b>", [(0, 1.0), (1, 2.0)])], "<i>", 'a"b')
    assert "<b>" not in svg
    assert "<i>" not in svg
    ElementTree.fromstring(svg)
