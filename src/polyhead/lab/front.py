"""Error against cost as SVG: a point for each choice, and the line of those that no other one beats in both."""

from __future__ import annotations

from html import escape

from polyhead.analysis.charts import Scale, axes, log_ticks, number, powers
from polyhead.analysis.scatter import place
from polyhead.compare.pareto import Dot, frontier, staircase
from polyhead.core.i18n import tr
from polyhead.lab.result import Front

TOP, BOTTOM, RIGHT = 26, 44, 22  # pixels


def front_chart(front: Front, width: int, height: int) -> str:
    """An SVG element: cheaper is left, better is up. Points of a family are joined; the front is a line of steps."""
    points = [(i, *point) for i, family in enumerate(front.families.values()) for point in family]
    xs = [cost for _, _, cost, _ in points]
    ys = [max(error, front.floor) for *_, error in points]
    marks = powers(min(ys), max(ys))
    left = 18 + 7.2 * max(len(said(mark, front.floor)) for mark in marks)
    bottom = height - BOTTOM
    x = Scale(min(xs) / 1.25, max(xs) * 1.25, left, width - RIGHT, True)
    y = Scale(marks[0], marks[-1], TOP, bottom, True)
    parts = [
        f'<svg class="chart front" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(told(front))}">'
    ]
    at_x = {mark: number(mark) for mark in log_ticks(min(xs), max(xs)) if x.lo <= mark <= x.hi}
    parts += axes(x, y, at_x, {mark: said(mark, front.floor) for mark in marks})
    parts.append(f'<text class="label end" x="{x.end}" y="{height - 4}">{escape(front.x_label)}</text>')
    parts.append(
        f'<text class="label" x="{left + 6:.1f}" y="14">{escape(tr("{measure}, better is up", measure=front.y_label))}</text>'
    )
    pixels = [(x.at(cost), y.at(error)) for cost, error in zip(xs, ys, strict=True)]
    parts.append(f'<path class="best" d="{staircase(best_of(front), x, y)}"/>')
    for i in range(len(front.families)):
        own = [f"{a:.1f} {b:.1f}" for (j, *_), (a, b) in zip(points, pixels, strict=True) if i == j]
        parts.append(f'<path class="curve c{i}" d="M{"L".join(own)}"/>')
    for (i, name, cost, error), (a, b) in zip(points, pixels, strict=True):
        parts.append(
            f"<g><title>{escape(name)}: {escape(front.y_label)} {number(error)}, {escape(front.x_label)} {number(cost)}</title>"
            f'<circle class="dot c{i}" cx="{a:.1f}" cy="{b:.1f}" r="4"/></g>'
        )
    texts = labels(front)
    for label in place(pixels, texts, (width, bottom)):
        parts.append(
            f'<text class="named c{points[label.i][0]}" x="{label.x:.1f}" y="{label.y:.1f}">{escape(texts[label.i])}</text>'
        )
    return "".join([*parts, "</svg>"])


def labels(front: Front) -> list[str]:
    """What stands beside the points: the first of a family has its name, the others what comes after the family's."""
    return [
        name.removeprefix(f"{family} ") if i else name
        for family, points in front.families.items()
        for i, (name, _, _) in enumerate(points)
    ]


def best_of(front: Front) -> list[Dot]:
    """The points that no other one beats in cost and error, cheapest first; what is below the floor is equally good."""
    points = [point for family in front.families.values() for point in family]
    dots = [Dot(i, name, cost, max(error, front.floor), ()) for i, (name, cost, error) in enumerate(points)]
    return frontier(dots, True)


def said(mark: float, floor: float) -> str:
    """A tick as text; at the floor stands what is less, too."""
    return f"≤{mark:g}" if mark <= floor else f"{mark:g}"


def told(front: Front) -> str:
    """What a reader who cannot see the chart is told."""
    best = "; ".join(
        tr("{name} {value} at {cost}", name=dot.name, value=number(dot.y), cost=number(dot.x))
        for dot in best_of(front)
    )
    return tr(
        "{quality} against {cost}; best for their cost: {best}",
        quality=front.y_label,
        cost=front.x_label,
        best=best,
    )
