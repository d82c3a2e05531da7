"""Dot plot of designs as SVG: one row each, a small dot for every seed, the mean and its interval on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from polyhead.core.i18n import tr
from polyhead.lab.result import DotPlot
from polyhead.lab.statistics import mean_interval
from polyhead.viz.svg_charts import LOG_RATIO, Scale, format_number, format_scale, linear_ticks, log_ticks

_ROW_HEIGHT, _TOP, _BOTTOM = 34, 8, 40


def render_dot_plot(plot: DotPlot, width: int) -> str:
    """SVG element; rows from top to bottom, values from left to right; zero is included if it is near."""
    finite = [v for values in plot.rows.values() for v in values if math.isfinite(v)]
    labels = max(map(len, plot.rows))
    left = 16 + 7.2 * min(labels, 30)
    height = _TOP + _ROW_HEIGHT * len(plot.rows) + _BOTTOM
    x, marks = make_x_scale(finite or [0.0, 1.0], left, width - 96)
    base = height - _BOTTOM
    parts = [
        f'<svg class="chart dots" viewBox="0 0 {width} {height}" role="img" data-x="{format_scale(x)}" '
        f'aria-label="{escape(dot_plot_alt_text(plot))}">'
    ]
    for value in marks:
        at = f"{x.to_pixel(value):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick middle" x="{at}" y="{base + 18}">{format_number(value)}</text>')
    parts.append(f'<text class="label end" x="{x.end:.1f}" y="{height - 4}">{escape(plot.x_label)}</text>')
    for i, (name, values) in enumerate(plot.rows.items()):
        parts.append(render_row(name, values, x, _TOP + _ROW_HEIGHT * i + _ROW_HEIGHT / 2, left, width))
    return "".join([*parts, "</svg>"])


def make_x_scale(values: Sequence[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """Scale of the x axis, and its ticks."""
    lo, hi = min(values), max(values)
    if lo > 0 and hi / lo > LOG_RATIO:
        marks = log_ticks(lo, hi)
        if len(marks) > 7:  # only powers of ten
            marks = [m for m in marks if f"{m:e}"[0] == "1"] or marks
        return Scale(min(lo, marks[0]), max(hi, marks[-1]), start, end, True), marks
    marks = linear_ticks(0.0 if 0 <= lo <= 0.6 * hi else lo, hi, 6)
    return Scale(marks[0], marks[-1], start, end), marks


def render_row(name: str, values: Sequence[float], x: Scale, y: float, left: float, width: float) -> str:
    """Row of one design: name, seeds, mean with its 95 % interval if there is one, and the mean as text."""
    finite = [v for v in values if math.isfinite(v)]
    n_lost = len(values) - len(finite)
    parts = [f'<text class="name end" x="{left - 12:.1f}" y="{y + 4:.1f}">{escape(name)}</text>']
    interval = mean_interval(finite) if finite else None
    if interval is not None:
        if math.isfinite(interval.half_width):
            ends = [x.to_pixel(min(max(v, x.lo), x.hi)) for v in (interval.low, interval.high)]
            parts.append(
                f'<line class="reach" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
        parts += [f'<circle class="seed" cx="{x.to_pixel(v):.1f}" cy="{y:.1f}" r="3"/>' for v in finite]
        parts.append(f'<circle class="mean" cx="{x.to_pixel(interval.mean):.1f}" cy="{y:.1f}" r="5"/>')
    text = format_number(interval.mean) if interval is not None else ""
    if n_lost:
        text += " " + tr("({lost} of {n} lost)", lost=n_lost, n=len(values)) if finite else tr("diverged")
    parts.append(f'<text class="tick value" x="{x.end + 14:.1f}" y="{y + 4:.1f}">{escape(text)}</text>')
    return "".join(parts)


def dot_plot_alt_text(plot: DotPlot) -> str:
    """Text alternative of the chart, for screen readers."""
    parts = []
    for name, values in plot.rows.items():
        finite = [v for v in values if math.isfinite(v)]
        parts.append(f"{name} {format_number(mean_interval(finite).mean) if finite else tr('diverged')}")
    return f"{plot.x_label}: {'; '.join(parts)}"
