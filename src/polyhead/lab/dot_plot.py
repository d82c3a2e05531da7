"""Dot plot of designs as SVG: one row each, a small dot for every seed, the mean and its interval on top."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyhead.core.i18n import tr
from polyhead.lab.result import DotPlot
from polyhead.lab.statistics import mean_interval
from polyhead.viz.plot import (
    BOTTOM,
    X_SPACING,
    Scale,
    enclosing_axis,
    format_number,
    format_scale,
    left_margin,
    svg,
    tag,
    text,
    x_tick_labels,
)

_ROW_HEIGHT, _TOP, _VALUE_WIDTH, _MAX_NAME = 34, 8, 96, 30  # three lengths in pixels, one in characters


def render_dot_plot(plot: DotPlot, width: int) -> str:
    """SVG element; rows from top to bottom, values from left to right."""
    finite = [v for values in plot.rows.values() for v in values if math.isfinite(v)]
    left = left_margin(name[:_MAX_NAME] for name in plot.rows)
    base = _TOP + _ROW_HEIGHT * len(plot.rows)
    x = enclosing_axis(finite or [0.0, 1.0], left, width - _VALUE_WIDTH, X_SPACING)
    parts = [tag("line", "grid", x1=at, x2=at, y1=_TOP, y2=base) for at, _ in x.labels()]
    parts += x_tick_labels(x, base + 18)
    parts.append(text("label end", x.scale.end, base + 36, plot.x_label))
    for i, (name, values) in enumerate(plot.rows.items()):
        parts += draw_row(name, values, x.scale, _TOP + _ROW_HEIGHT * (i + 0.5))
    alt_text = dot_plot_alt_text(plot)
    return svg("chart dots", width, base + BOTTOM, alt_text, parts, data_x=format_scale(x.scale))


def draw_row(name: str, values: Sequence[float], x: Scale, y: float) -> list[str]:
    """Row of one design: name, seeds, mean with its 95 % interval if there is one, and the mean as text."""
    finite = [v for v in values if math.isfinite(v)]
    parts, label = [text("name end", x.start - 12, y + 4, name)], ""
    if finite:
        interval = mean_interval(finite)
        if math.isfinite(interval.half_width):
            low, high = (x.to_pixel(min(max(v, x.lo), x.hi)) for v in (interval.low, interval.high))
            parts.append(tag("line", "reach", x1=low, x2=high, y1=y, y2=y))
        parts += [tag("circle", "seed", cx=x.to_pixel(v), cy=y, r=3) for v in finite]
        parts.append(tag("circle", "mean", cx=x.to_pixel(interval.mean), cy=y, r=5))
        label = format_number(interval.mean)
    if lost := len(values) - len(finite):
        label += " " + tr("({lost} of {n} lost)", lost=lost, n=len(values)) if finite else tr("diverged")
    return [*parts, text("tick value", x.end + 14, y + 4, label)]


def dot_plot_alt_text(plot: DotPlot) -> str:
    """Text alternative of the chart, for screen readers."""
    parts = []
    for name, values in plot.rows.items():
        finite = [v for v in values if math.isfinite(v)]
        parts.append(f"{name} {format_number(mean_interval(finite).mean) if finite else tr('diverged')}")
    return f"{plot.x_label}: {'; '.join(parts)}"
