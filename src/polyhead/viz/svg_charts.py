"""Line charts as SVG, without a plotting library: sharp at any size, coloured by the style sheet of the page.

Pixels count from the upper left corner; ``Scale`` is the only place that converts values to pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from polyhead.core.i18n import tr

Point = tuple[float, float]

MAX_POINTS = 400  # longer curves are averaged in groups: a screen has no more columns
LOG_RATIO = 30  # curves with a larger ratio of maximum to minimum have a logarithmic axis


class Curve(NamedTuple):
    """A named curve: its points in order of x."""

    name: str
    points: Sequence[Point]


class Scale(NamedTuple):
    """Map values lo..hi to pixels start..end; ``is_log`` makes it logarithmic."""

    lo: float
    hi: float
    start: float
    end: float
    is_log: bool = False

    def to_pixel(self, value: float) -> float:
        """The pixel of a value."""
        lo, hi, value = (math.log(v) if self.is_log else v for v in (self.lo, self.hi, value))
        return self.start + (value - lo) / (hi - lo) * (self.end - self.start)


def linear_ticks(lo: float, hi: float, n: int = 5) -> list[float]:
    """About n round numbers (1, 2 or 5 times a power of ten) that enclose lo..hi."""
    if hi <= lo:
        lo, hi = lo - (abs(lo) or 1) / 2, hi + (abs(hi) or 1) / 2
    rough = (hi - lo) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / rough)))
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(lo: float, hi: float) -> list[float]:
    """1, 2 and 5 times every power of ten, from the last one below lo to the first one above hi."""
    powers = range(math.floor(math.log10(lo)) - 1, math.ceil(math.log10(hi)) + 2)
    all_ticks = [float(f"{m}e{p}") for p in powers for m in (1, 2, 5)]
    first = max(i for i, t in enumerate(all_ticks) if t <= lo)
    last = min(i for i, t in enumerate(all_ticks) if t >= hi)
    return all_ticks[first : last + 1]


def power_ticks(lo: float, hi: float) -> list[float]:
    """The powers of ten around lo..hi, at least two."""
    first, last = math.floor(math.log10(lo) + 1e-9), math.ceil(math.log10(hi) - 1e-9)
    return [float(f"1e{p}") for p in range(first, max(first + 1, last) + 1)]


def log_x_ticks(values: Sequence[float], width: float) -> list[float]:
    """Ticks of a logarithmic x axis: the measured values if they are few, else round ones."""
    distinct = sorted(set(values))
    return (
        distinct[:: math.ceil(len(distinct) * 48 / width)]
        if len(distinct) <= 12
        else log_ticks(distinct[0], distinct[-1])
    )


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Average equal groups of neighbouring points, so that pages stay small; drop non-finite values."""
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    size = -(-len(finite) // max_points)
    if size <= 1:
        return finite
    groups = [finite[i : i + size] for i in range(0, len(finite), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def format_number(value: float) -> str:
    """Format a number for people: 12,000 and 0.0312, not 12000.0 and 0.031200000000000002."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (1e-3 <= abs(value) < 1e15 and float(value).is_integer()):
        return f"{int(value):,}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2g}"


def fit_scales(
    curves: Sequence[Curve], width: float, height: float, from_zero: bool, log_x: bool = False
) -> tuple[Scale, Scale, list[float], list[float]]:
    """Horizontal and vertical scale that contain all points, and their ticks."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    log = not from_zero and min(ys) > 0 and max(ys) / min(ys) > LOG_RATIO
    lo = 0.0 if from_zero or 0 < min(ys) <= 0.4 * max(ys) else min(ys)  # close enough to zero to include it
    y_ticks = (
        log_ticks(min(ys), max(ys))
        if log
        else linear_ticks(min(lo, *ys), max(ys), max(3, round(height / 60)))
    )
    y_ticks = power_ticks(min(ys), max(ys)) if log and len(y_ticks) > height / 18 else y_ticks
    round_x = log_x_ticks(xs, width) if log_x else linear_ticks(min(xs), max(xs), max(3, round(width / 110)))
    x_ticks = [x for x in round_x if min(xs) <= x <= max(xs)]
    left, right, top, bottom = 14 + 7 * max(len(format_number(y)) for y in y_ticks), 22, 12, 40
    hi = max(xs) if max(xs) > min(xs) else min(xs) + 1
    return (
        Scale(min(xs), hi, left, width - right, log_x),
        Scale(y_ticks[0], y_ticks[-1], height - bottom, top, log),
        x_ticks or [min(xs)],
        y_ticks,
    )


def line_chart(
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    width: int = 760,
    height: int = 300,
    from_zero: bool = False,
    log_x: bool = False,
) -> str:
    """An SVG element with axes, ticks, one path per curve, and the scales as data for the hover readout.

    Curves are distinguished by the classes c0, c1, ... and, if points are few, by dots. ``log_x`` makes the x
    axis logarithmic.
    """
    curves = [Curve(c.name, downsample(c.points)) for c in curves]
    x, y, x_ticks, y_ticks = fit_scales(curves, width, height, from_zero, log_x)
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" data-x="{format_scale(x)}" data-y="{format_scale(y)}" '
        f'aria-label="{escape(describe_curves(curves, x_label, y_label))}">'
    ]
    parts += draw_axes(
        x,
        y,
        {value: format_number(value) for value in x_ticks},
        {value: format_number(value) for value in y_ticks},
    )
    parts.append(f'<text class="label end" x="{x.end:.1f}" y="{height - 4}">{escape(x_label)}</text>')
    for i, curve in enumerate(curves):
        pixels = [(f"{x.to_pixel(a):.1f}", f"{y.to_pixel(b):.1f}") for a, b in curve.points]
        parts.append(f'<path class="curve c{i}" d="M{"L".join(f"{a} {b}" for a, b in pixels)}"/>')
        if len(pixels) <= 24:
            parts += [f'<circle class="dot c{i}" cx="{a}" cy="{b}" r="3"/>' for a, b in pixels]
    return "".join([*parts, "</svg>"])


def draw_axes(x: Scale, y: Scale, x_ticks: Mapping[float, str], y_ticks: Mapping[float, str]) -> list[str]:
    """The x axis with its ticks below, and grid lines with the y ticks to the left."""
    bottom, parts = max(y.start, y.end), []
    for value, text in y_ticks.items():
        pixel = f"{y.to_pixel(value):.1f}"
        parts.append(f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{pixel}" y2="{pixel}"/>')
        parts.append(
            f'<text class="tick end" x="{x.start - 8:.1f}" y="{y.to_pixel(value) + 4:.1f}">{text}</text>'
        )
    for value, text in x_ticks.items():
        pixel = f"{x.to_pixel(value):.1f}"
        parts.append(
            f'<line class="axis" x1="{pixel}" x2="{pixel}" y1="{bottom:.1f}" y2="{bottom + 5:.1f}"/>'
        )
        parts.append(f'<text class="tick middle" x="{pixel}" y="{bottom + 19:.1f}">{text}</text>')
    ends = f'x1="{x.start:.1f}" x2="{x.end:.1f}"'
    return [*parts, f'<line class="axis" {ends} y1="{bottom:.1f}" y2="{bottom:.1f}"/>']


def format_scale(scale: Scale) -> str:
    """A scale in the format that the script of the page reads."""
    return " ".join(f"{v:.10g}" for v in (*scale[:4], int(scale.is_log)))


def describe_curves(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """The description of the chart for screen readers."""
    ends = "; ".join(
        tr(
            "{name} from {start} to {end}",
            name=c.name,
            start=format_number(c.points[0][1]),
            end=format_number(c.points[-1][1]),
        )
        for c in curves
        if c.points
    )
    return tr("{y} by {x}: {ends}", y=y_label, x=x_label, ends=ends)
