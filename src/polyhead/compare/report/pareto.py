"""Chart of quality against cost with the Pareto front: designs that no other design beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from polyhead.compare.io import ResultRow
from polyhead.compare.report import text_table
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.svg_charts import Scale, draw_axes, format_number, linear_ticks

_RANGE_PADDING = 0.08  # margin at both ends, as a share of the range


class ParetoPoint(NamedTuple):
    """One design: its number, cost, quality, and the interval of its quality."""

    number: int
    name: str
    x: float
    y: float
    interval: tuple[float, ...]


class CostAxis(NamedTuple):
    """A cost: its title, its key in a row, and how its value is computed."""

    title: str
    key: str
    get_value: Callable[[ResultRow], float]


COST_AXES = (
    CostAxis("parameters", "parameters", lambda row: float(row["parameters"])),
    CostAxis("FLOPs", "flops_per_token", lambda row: float(row["flops_per_token"])),
    CostAxis("training, seconds", "seconds", lambda row: float(row["seconds"])),
    CostAxis(
        "decoding, µs a token", "decode_tokens_per_s", lambda row: 1e6 / float(row["decode_tokens_per_s"])
    ),
)


def select_cost_axes(done_rows: Sequence[ResultRow]) -> tuple[CostAxis, ...]:
    """Costs that can be drawn: those that every row has."""
    return tuple(cost for cost in COST_AXES if done_rows and all(row[cost.key] for row in done_rows))


def find_frontier(points: Sequence[ParetoPoint], lower_is_better: bool) -> list[ParetoPoint]:
    """Designs that no other design beats in both cost and quality, cheapest first."""
    sign = 1 if lower_is_better else -1
    frontier: list[ParetoPoint] = []
    for dot in sorted(points, key=lambda dot: (dot.x, sign * dot.y)):
        if not frontier or sign * dot.y < sign * frontier[-1].y:
            frontier.append(dot)
    return frontier


def draw_staircase(points: Sequence[ParetoPoint], x: Scale, y: Scale) -> str:
    """SVG path through the frontier, cheapest first: a step at each design, as values between are unknown."""
    (across, up), *rest = ((f"{x.to_pixel(dot.x):.1f}", f"{y.to_pixel(dot.y):.1f}") for dot in points)
    return f"M{across} {up}" + "".join(f"H{a}V{b}" for a, b in rest) + f"H{x.end}"


def render_pareto_chart(
    points: Sequence[ParetoPoint], measure: QualityMeasure, cost: CostAxis, width: int, height: int
) -> str:
    """SVG element: better is up, cheaper is left; each point has a number and its 95 % interval as a line."""
    x_ticks, (x_low, x_high) = _axis_range([dot.x for dot in points], max(3, round(width / 140)))
    y_ticks, (y_low, y_high) = _axis_range(
        [v for dot in points for v in (dot.y, *dot.interval)], max(3, round(height / 60))
    )
    left = 16 + 7.2 * max(len(format_number(y)) for y in y_ticks)
    x = Scale(x_low, x_high, left, width - 18)
    bottom = height - 42
    y = Scale(y_low, y_high, 14, bottom) if measure.lower_is_better else Scale(y_low, y_high, bottom, 14)
    parts = [
        f'<svg class="chart pareto" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(_describe_chart(points, measure, cost))}">'
    ]
    # enough digits to distinguish neighbouring ticks
    digits = next(
        (n for n in (3, 4, 5, 6) if len({text_table.format_short(v, n) for v in x_ticks}) == len(x_ticks)), 7
    )
    at_x = {value: text_table.format_short(value, digits) for value in x_ticks}
    parts += draw_axes(x, y, at_x, {value: format_number(value) for value in y_ticks})
    parts.append(f'<text class="label end" x="{x.end}" y="{height - 3}">{escape(tr(cost.title))}</text>')
    parts.append(
        f'<text class="label" x="{left + 6:.1f}" y="12">{escape(tr("{measure}, better is up", measure=tr(measure.title)))}</text>'
    )
    best = find_frontier(points, measure.lower_is_better)
    parts.append(f'<path class="front" d="{draw_staircase(best, x, y)}"/>')
    for dot in points:
        cx, cy = x.to_pixel(dot.x), y.to_pixel(dot.y)
        low, high = (y.to_pixel(v) for v in dot.interval)
        tooltip = f"{dot.name}: {tr(measure.title)} {format_number(dot.y)}, {tr(cost.title)} {text_table.format_short(dot.x)}"
        parts.append(
            f'<g class="point c{dot.number}"><title>{escape(tooltip)}</title>'
            f'<line class="whisker" x1="{cx:.1f}" x2="{cx:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            f'<circle class="mark c{dot.number}" cx="{cx:.1f}" cy="{cy:.1f}" r="10"/>'
            f'<text class="rank middle" x="{cx:.1f}" y="{cy + 3.8:.1f}">{dot.number + 1}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _axis_range(values: Sequence[float], n: int) -> tuple[list[float], tuple[float, float]]:
    """Ticks within a range that contains the values, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = _RANGE_PADDING * ((high - low) or abs(high) or 1.0)
    low, high = low - margin, high + margin
    return [tick for tick in linear_ticks(low, high, n) if low <= tick <= high], (low, high)


def _describe_chart(points: Sequence[ParetoPoint], measure: QualityMeasure, cost: CostAxis) -> str:
    """Text alternative of the chart, for screen readers."""
    best = "; ".join(
        tr(
            "{name} {value} at {cost}",
            name=d.name,
            value=format_number(d.y),
            cost=text_table.format_short(d.x),
        )
        for d in find_frontier(points, measure.lower_is_better)
    )
    return tr(
        "{quality} against {cost}; best for their cost: {best}",
        quality=tr(measure.title),
        cost=tr(cost.title),
        best=best,
    )
