import re

import pytest
from tests.lab.page_helpers import RESULT

from polyhead.lab.dot_plot import render_dot_plot
from polyhead.lab.result import DotPlot


def test_dots_stand_where_their_values_are():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [1.0, 3.0], "b": [2.0, 2.0]}), 800)
    lo, hi, start, end, log = map(float, re.search(r'data-x="([^"]*)"', svg)[1].split())
    assert log == 0
    assert lo == 0  # zero is near
    seeds = [float(x) for x in re.findall(r'class="seed" cx="([\d.]+)"', svg)]
    means = [float(x) for x in re.findall(r'class="mean" cx="([\d.]+)"', svg)]
    wanted = [start + (v - lo) / (hi - lo) * (end - start) for v in (1, 3, 2, 2, 2, 2)]
    assert [*seeds, *means] == pytest.approx(wanted, abs=0.1)


def test_the_band_is_cut_where_the_picture_ends():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [1.0, 3.0]}), 800)  # the interval of two values reaches far
    start, end = map(float, re.search(r'data-x="\S+ \S+ (\S+) (\S+)', svg).groups())
    x1, x2 = map(float, re.search(r'class="reach" x1="([\d.]+)" x2="([\d.]+)"', svg).groups())
    assert start - 0.1 <= x1 < x2 <= end + 0.1


def test_a_lost_training_is_named():
    svg = render_dot_plot(RESULT.figures[1], 800)
    assert "(1 of 2 lost)" in svg
    assert "diverged" in svg
    assert svg.count('class="mean"') == 2


def test_values_far_apart_are_drawn_on_a_logarithmic_scale():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [0.001], "b": [1.0]}), 800)
    assert re.search(r'data-x="[^"]* 1"', svg)
