import re

import pytest
from tests.lab.page_helpers import RESULT

from polyhead_lab.page import render_dot_plot
from polyhead_lab.registry import DotPlot


def render(**values):
    return render_dot_plot(DotPlot("t", "x", values), 800)


def find_numbers(pattern, svg):
    return [float(x) for x in re.findall(pattern, svg)]


def test_dots_and_intervals_are_at_their_values():
    svg = render(a=[1.0, 3.0], b=[2.0, 2.0])
    low, high, start, end, is_log = map(float, re.search(r'data-x="([^"]*)"', svg)[1].split())
    assert (is_log, low) == (0, 0)  # from zero, which is near
    dots = find_numbers(r'class="seed" cx="([\d.]+)"', svg) + find_numbers(r'class="mean" cx="([\d.]+)"', svg)
    expected = [start + (v - low) / (high - low) * (end - start) for v in (1, 3, 2, 2, 2, 2)]
    assert dots == pytest.approx(expected, abs=0.1)
    svg = render(a=[1.0, 3.0])  # the interval of two values is wide
    start, end = map(float, re.search(r'data-x="\S+ \S+ (\S+) (\S+)', svg).groups())
    x1, x2 = map(float, re.search(r'class="reach" x1="([\d.]+)" x2="([\d.]+)"', svg).groups())
    assert start - 0.1 <= x1 < x2 <= end + 0.1


def test_diverged_training_is_labeled():
    assert re.search(r'data-x="[^"]* 1"', render(a=[0.001], b=[1.0]))  # a wide range is logarithmic
    svg = render_dot_plot(RESULT.figures[1], 800)
    assert "(1 of 2 lost)" in svg and "diverged" in svg
    assert svg.count('class="mean"') == 2
