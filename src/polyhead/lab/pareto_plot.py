"""Error against cost as SVG: a point for each choice, and the frontier that no other choice beats in both."""

from __future__ import annotations

from html import escape

from polyhead.compare.report.pareto import ParetoPoint, draw_staircase, find_frontier
from polyhead.core.i18n import tr
from polyhead.lab.result import ParetoPlot
from polyhead.viz.scatter import place_labels
from polyhead.viz.svg_charts import Scale, draw_axes, format_number, log_ticks, power_ticks

_TOP, _BOTTOM, _RIGHT = 26, 44, 22  # pixels


def render_pareto_plot(plot: ParetoPlot, width: int, height: int) -> str:
    """SVG element: cheaper is left, better is up. Points of a family are joined; the frontier has steps."""
    points = [(i, *point) for i, family in enumerate(plot.families.values()) for point in family]
    xs = [cost for _, _, cost, _ in points]
    ys = [max(error, plot.floor) for *_, error in points]
    marks = power_ticks(min(ys), max(ys))
    left = 18 + 7.2 * max(len(format_tick(mark, plot.floor)) for mark in marks)
    bottom = height - _BOTTOM
    x = Scale(min(xs) / 1.25, max(xs) * 1.25, left, width - _RIGHT, True)
    y = Scale(marks[0], marks[-1], _TOP, bottom, True)
    parts = [
        f'<svg class="chart front" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(pareto_alt_text(plot))}">'
    ]
    at_x = {mark: format_number(mark) for mark in log_ticks(min(xs), max(xs)) if x.lo <= mark <= x.hi}
    parts += draw_axes(x, y, at_x, {mark: format_tick(mark, plot.floor) for mark in marks})
    parts.append(f'<text class="label end" x="{x.end}" y="{height - 4}">{escape(plot.x_label)}</text>')
    parts.append(
        f'<text class="label" x="{left + 6:.1f}" y="14">{escape(tr("{measure}, better is up", measure=plot.y_label))}</text>'
    )
    pixels = [(x.to_pixel(cost), y.to_pixel(error)) for cost, error in zip(xs, ys, strict=True)]
    parts.append(f'<path class="best" d="{draw_staircase(find_best_points(plot), x, y)}"/>')
    for i in range(len(plot.families)):
        family_points = [f"{a:.1f} {b:.1f}" for (j, *_), (a, b) in zip(points, pixels, strict=True) if i == j]
        parts.append(f'<path class="curve c{i}" d="M{"L".join(family_points)}"/>')
    for (i, name, cost, error), (a, b) in zip(points, pixels, strict=True):
        parts.append(
            f"<g><title>{escape(name)}: {escape(plot.y_label)} {format_number(error)}, {escape(plot.x_label)} {format_number(cost)}</title>"
            f'<circle class="dot c{i}" cx="{a:.1f}" cy="{b:.1f}" r="4"/></g>'
        )
    texts = make_point_labels(plot)
    for label in place_labels(pixels, texts, (width, bottom)):
        parts.append(
            f'<text class="named c{points[label.i][0]}" x="{label.x:.1f}" y="{label.y:.1f}">{escape(texts[label.i])}</text>'
        )
    return "".join([*parts, "</svg>"])


def make_point_labels(plot: ParetoPlot) -> list[str]:
    """Labels of the points: the first of a family has its full name, the others omit the family's name."""
    return [
        name.removeprefix(f"{family} ") if i else name
        for family, points in plot.families.items()
        for i, (name, _, _) in enumerate(points)
    ]


def find_best_points(plot: ParetoPlot) -> list[ParetoPoint]:
    """Points that no other point beats in cost and error, cheapest first; errors are at least the floor."""
    points = [point for family in plot.families.values() for point in family]
    dots = [
        ParetoPoint(i, name, cost, max(error, plot.floor), ()) for i, (name, cost, error) in enumerate(points)
    ]
    return find_frontier(dots, True)


def format_tick(mark: float, floor: float) -> str:
    """Format a tick; the one at the floor includes all smaller values."""
    return f"≤{mark:g}" if mark <= floor else f"{mark:g}"


def pareto_alt_text(plot: ParetoPlot) -> str:
    """Text alternative of the chart, for screen readers."""
    best = "; ".join(
        tr("{name} {value} at {cost}", name=dot.name, value=format_number(dot.y), cost=format_number(dot.x))
        for dot in find_best_points(plot)
    )
    return tr(
        "{quality} against {cost}; best for their cost: {best}",
        quality=plot.y_label,
        cost=plot.x_label,
        best=best,
    )
