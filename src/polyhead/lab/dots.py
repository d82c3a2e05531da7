"""Designs beside each other as SVG: a row each, a small dot for every seed, the mean and its interval on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from polyhead.analysis.charts import LOG_RATIO, Scale, log_ticks, number, numbers, ticks
from polyhead.core.i18n import tr
from polyhead.lab.result import Dots
from polyhead.lab.verdict import interval

ROW, TOP, BOTTOM = 34, 8, 40


def dot_chart(dots: Dots, width: int) -> str:
    """An SVG element; rows from top to bottom, values from left to right, zero in sight where it is near."""
    finite = [v for values in dots.rows.values() for v in values if math.isfinite(v)]
    labels = max(map(len, dots.rows))
    left = 16 + 7.2 * min(labels, 30)
    height = TOP + ROW * len(dots.rows) + BOTTOM
    x, marks = across(finite or [0.0, 1.0], left, width - 96)
    base = height - BOTTOM
    parts = [
        f'<svg class="chart dots" viewBox="0 0 {width} {height}" role="img" data-x="{numbers(x)}" '
        f'aria-label="{escape(told(dots))}">'
    ]
    for value in marks:
        at = f"{x.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick middle" x="{at}" y="{base + 18}">{number(value)}</text>')
    parts.append(f'<text class="label end" x="{x.end:.1f}" y="{height - 4}">{escape(dots.x_label)}</text>')
    for i, (name, values) in enumerate(dots.rows.items()):
        parts.append(row(name, values, x, TOP + ROW * i + ROW / 2, left, width))
    return "".join([*parts, "</svg>"])


def across(values: Sequence[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """The scale and its ticks."""
    lo, hi = min(values), max(values)
    if lo > 0 and hi / lo > LOG_RATIO:
        marks = log_ticks(lo, hi)
        if len(marks) > 7:  # whole powers of ten will do
            marks = [m for m in marks if f"{m:e}"[0] == "1"] or marks
        return Scale(min(lo, marks[0]), max(hi, marks[-1]), start, end, True), marks
    marks = ticks(0.0 if 0 <= lo <= 0.6 * hi else lo, hi, 6)
    return Scale(marks[0], marks[-1], start, end), marks


def row(name: str, values: Sequence[float], x: Scale, y: float, left: float, width: float) -> str:
    """One design: its name, its seeds, its mean with the 95 % interval where it has one, and the mean as text."""
    seen = [v for v in values if math.isfinite(v)]
    lost = len(values) - len(seen)
    parts = [f'<text class="name end" x="{left - 12:.1f}" y="{y + 4:.1f}">{escape(name)}</text>']
    found = interval(seen) if seen else None
    if found is not None:
        if math.isfinite(found.half):
            ends = [x.at(min(max(v, x.lo), x.hi)) for v in (found.low, found.high)]
            parts.append(
                f'<line class="reach" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
        parts += [f'<circle class="seed" cx="{x.at(v):.1f}" cy="{y:.1f}" r="3"/>' for v in seen]
        parts.append(f'<circle class="mean" cx="{x.at(found.mean):.1f}" cy="{y:.1f}" r="5"/>')
    text = number(found.mean) if found is not None else ""
    if lost:
        text += " " + tr("({lost} of {n} lost)", lost=lost, n=len(values)) if seen else tr("diverged")
    parts.append(f'<text class="tick value" x="{x.end + 14:.1f}" y="{y + 4:.1f}">{escape(text)}</text>')
    return "".join(parts)


def told(dots: Dots) -> str:
    """What a reader who cannot see the chart is told."""
    said = []
    for name, values in dots.rows.items():
        seen = [v for v in values if math.isfinite(v)]
        said.append(f"{name} {number(interval(seen).mean) if seen else tr('diverged')}")
    return f"{dots.x_label}: {'; '.join(said)}"
