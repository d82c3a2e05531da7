"""Quality against cost as a chart of points, with the line of those that no other one beats in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from polyhead.analysis.charts import Scale, axes, number, ticks
from polyhead.compare import table
from polyhead.compare.tasks.base import Measure
from polyhead.core.i18n import tr

Row = Mapping[str, Any]
PAD = 0.08  # of the range, left free at its ends


class Dot(NamedTuple):
    """One design: its number, cost, quality and the interval of that."""

    number: int
    name: str
    x: float
    y: float
    interval: tuple[float, ...]


class Cost(NamedTuple):
    """A cost, the key of a row that it comes from, and how."""

    title: str
    key: str
    of: Callable[[Row], float]


COSTS = (
    Cost("parameters", "parameters", lambda row: float(row["parameters"])),
    Cost("FLOPs", "flops_per_token", lambda row: float(row["flops_per_token"])),
    Cost("training, seconds", "seconds", lambda row: float(row["seconds"])),
    Cost("decoding, µs a token", "decode_tokens_per_s", lambda row: 1e6 / float(row["decode_tokens_per_s"])),
)


def costs(done: Sequence[Row]) -> tuple[Cost, ...]:
    """The costs that can be drawn: those that every row has."""
    return tuple(cost for cost in COSTS if done and all(row[cost.key] for row in done))


def frontier(dots: Sequence[Dot], less_is_better: bool) -> list[Dot]:
    """The designs that no other one beats in cost and quality, cheapest first."""
    sign = 1 if less_is_better else -1
    kept: list[Dot] = []
    for dot in sorted(dots, key=lambda dot: (dot.x, sign * dot.y)):
        if not kept or sign * dot.y < sign * kept[-1].y:
            kept.append(dot)
    return kept


def staircase(best: Sequence[Dot], x: Scale, y: Scale) -> str:
    """The path through the frontier, cheapest first: a step at each design, since nothing is known in between."""
    (across, up), *rest = ((f"{x.at(dot.x):.1f}", f"{y.at(dot.y):.1f}") for dot in best)
    return f"M{across} {up}" + "".join(f"H{a}V{b}" for a, b in rest) + f"H{x.end}"


def pareto_chart(dots: Sequence[Dot], measure: Measure, cost: Cost, width: int, height: int) -> str:
    """An SVG element: better is up, cheaper is left, a number in each point, its 95 % interval as a line."""
    x_ticks, (x_low, x_high) = _range([dot.x for dot in dots], max(3, round(width / 140)))
    y_ticks, (y_low, y_high) = _range(
        [v for dot in dots for v in (dot.y, *dot.interval)], max(3, round(height / 60))
    )
    left = 16 + 7.2 * max(len(number(y)) for y in y_ticks)
    x = Scale(x_low, x_high, left, width - 18)
    bottom = height - 42
    y = Scale(y_low, y_high, 14, bottom) if measure.less_is_better else Scale(y_low, y_high, bottom, 14)
    parts = [
        f'<svg class="chart pareto" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(_summary(dots, measure, cost))}">'
    ]
    # as many figures as tell neighbours apart
    digits = next((n for n in (3, 4, 5, 6) if len({table.short(v, n) for v in x_ticks}) == len(x_ticks)), 7)
    at_x = {value: table.short(value, digits) for value in x_ticks}
    parts += axes(x, y, at_x, {value: number(value) for value in y_ticks})
    parts.append(f'<text class="label end" x="{x.end}" y="{height - 3}">{escape(tr(cost.title))}</text>')
    parts.append(
        f'<text class="label" x="{left + 6:.1f}" y="12">{escape(tr("{measure}, better is up", measure=tr(measure.title)))}</text>'
    )
    best = frontier(dots, measure.less_is_better)
    parts.append(f'<path class="front" d="{staircase(best, x, y)}"/>')
    for dot in dots:
        cx, cy = x.at(dot.x), y.at(dot.y)
        low, high = (y.at(v) for v in dot.interval)
        told = f"{dot.name}: {tr(measure.title)} {number(dot.y)}, {tr(cost.title)} {table.short(dot.x)}"
        parts.append(
            f'<g class="point c{dot.number}"><title>{escape(told)}</title>'
            f'<line class="whisker" x1="{cx:.1f}" x2="{cx:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            f'<circle class="mark c{dot.number}" cx="{cx:.1f}" cy="{cy:.1f}" r="10"/>'
            f'<text class="rank middle" x="{cx:.1f}" y="{cy + 3.8:.1f}">{dot.number + 1}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _range(values: Sequence[float], n: int) -> tuple[list[float], tuple[float, float]]:
    """Ticks inside a range that holds the values with some room at its ends."""
    low, high = min(values), max(values)
    room = PAD * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room
    return [tick for tick in ticks(low, high, n) if low <= tick <= high], (low, high)


def _summary(dots: Sequence[Dot], measure: Measure, cost: Cost) -> str:
    """What a reader who cannot see the chart is told."""
    best = "; ".join(
        tr("{name} {value} at {cost}", name=d.name, value=number(d.y), cost=table.short(d.x))
        for d in frontier(dots, measure.less_is_better)
    )
    return tr(
        "{quality} against {cost}; best for their cost: {best}",
        quality=tr(measure.title),
        cost=tr(cost.title),
        best=best,
    )
