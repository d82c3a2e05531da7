"""Chart of quality against cost with the Pareto frontier: the points that no other point beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from polyhead.core.i18n import tr
from polyhead.viz.plot import (
    BOTTOM,
    RIGHT,
    X_SPACING,
    Y_SPACING,
    Scale,
    distinct_digits,
    draw_axes,
    enclosing_axis,
    format_number,
    left_margin,
    padded_axis,
    path,
    svg,
    tag,
    text,
)
from polyhead.viz.scatter import place_labels

_TOP = 26  # pixels, with room for the title of the y axis


class ParetoPoint(NamedTuple):
    """One design: the number of its colour, its cost x, its quality y, the interval of its quality, its
    label.

    Points with the same number are joined. A point without a label shows its number.
    """

    number: int
    name: str
    x: float
    y: float
    interval: tuple[float, ...] = ()
    label: str = ""


class ParetoChart(NamedTuple):
    """Points, the titles of the axes and how their values are written; ``log`` makes
    both axes logarithmic.
    """

    points: Sequence[ParetoPoint]
    cost: str
    quality: str
    lower_is_better: bool = True
    log: bool = False
    format_cost: Callable[..., str] = format_number
    format_quality: Callable[[float], str] = format_number


def find_frontier(points: Sequence[ParetoPoint], lower_is_better: bool) -> list[ParetoPoint]:
    """Designs that no other design beats in both cost and quality, cheapest first."""
    sign = 1 if lower_is_better else -1
    frontier: list[ParetoPoint] = []
    for dot in sorted(points, key=lambda dot: (dot.x, sign * dot.y)):
        if not frontier or sign * dot.y < sign * frontier[-1].y:
            frontier.append(dot)
    return frontier


def pareto_svg(chart: ParetoChart, width: int, height: int) -> str:
    """SVG element: better is up, cheaper is left; the frontier has steps, an interval is a vertical line."""
    points, bottom = chart.points, height - BOTTOM
    qualities = [v for dot in points for v in (dot.y, *dot.interval)]
    ends = (_TOP, bottom) if chart.lower_is_better else (bottom, _TOP)
    if chart.log:
        y = enclosing_axis(qualities, *ends, Y_SPACING, log=True)
    else:
        y = padded_axis(qualities, *ends, Y_SPACING, 0.08)
    y = y._replace(format_tick=chart.format_quality)
    left = left_margin(label for _, label in y.labels())
    padding = 0.25 if chart.log else 0.08
    x = padded_axis([dot.x for dot in points], left, width - RIGHT, X_SPACING, padding, chart.log)
    x = x._replace(format_tick=distinct_digits(x.ticks, chart.format_cost))
    pixels = [(x.scale.to_pixel(dot.x), y.scale.to_pixel(dot.y)) for dot in points]
    parts = draw_axes(x, y, chart.cost, tr("{measure}, better is up", measure=chart.quality))
    frontier = find_frontier(points, chart.lower_is_better)
    parts.append(tag("path", "frontier", d=draw_staircase(frontier, x.scale, y.scale)))
    for number in {dot.number: None for dot in points}:
        family = [pixel for dot, pixel in zip(points, pixels, strict=True) if dot.number == number]
        parts += [path(f"curve c{number}", family)] if len(family) > 1 else []
    parts += [draw_point(chart, dot, *pixel, y.scale) for dot, pixel in zip(points, pixels, strict=True)]
    labels = place_labels(pixels, [dot.label for dot in points], (width, bottom))
    parts += [text(f"named c{points[at.i].number}", at.x, at.y, at.text) for at in labels if at.text]
    return svg("chart pareto", width, height, describe_frontier(chart), parts)


def draw_point(chart: ParetoChart, dot: ParetoPoint, cx: float, cy: float, y: Scale) -> str:
    """A point with its tooltip and its interval."""
    tooltip = (
        f"{dot.name}: {chart.quality} {chart.format_quality(dot.y)}, {chart.cost} {chart.format_cost(dot.x)}"
    )
    whisker = ""
    if dot.interval:
        low, high = map(y.to_pixel, dot.interval)
        whisker = tag("line", "whisker", x1=cx, x2=cx, y1=low, y2=high)
    if dot.label:
        mark = tag("circle", f"dot c{dot.number}", cx=cx, cy=cy, r=4)
    else:
        mark = tag("circle", f"mark c{dot.number}", cx=cx, cy=cy, r=10)
        mark += text("rank middle", cx, cy + 3.8, str(dot.number + 1))
    return tag("g", f"point c{dot.number}", f"<title>{escape(tooltip)}</title>{whisker}{mark}")


def draw_staircase(points: Sequence[ParetoPoint], x: Scale, y: Scale) -> str:
    """SVG path through the frontier, cheapest first: a step at each design, as values between are unknown."""
    (across, up), *rest = ((f"{x.to_pixel(dot.x):.1f}", f"{y.to_pixel(dot.y):.1f}") for dot in points)
    return f"M{across} {up}" + "".join(f"H{a}V{b}" for a, b in rest) + f"H{x.end}"


def describe_frontier(chart: ParetoChart) -> str:
    """Text alternative of the chart, for screen readers."""
    best = "; ".join(
        tr(
            "{name} {value} at {cost}",
            name=dot.name,
            value=chart.format_quality(dot.y),
            cost=chart.format_cost(dot.x),
        )
        for dot in find_frontier(chart.points, chart.lower_is_better)
    )
    return tr(
        "{quality} against {cost}; best for their cost: {best}",
        quality=chart.quality,
        cost=chart.cost,
        best=best,
    )
