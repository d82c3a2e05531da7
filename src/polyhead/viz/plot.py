"""Charts as SVG: the elements, scales, ticks, axes and legends of every chart, and line charts.

No plotting library: pages work without a network, take the colours of their style sheet in light and dark
mode, and show the values under the pointer. Plotly and Vega put megabytes of script into each page; an SVG of
matplotlib has fixed colours, fixed text sizes and no data for the script of the page. A chart here is 2 to
10 kB.

Pixels count from the upper left corner; ``Scale`` is the only place that converts values to pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from polyhead.core.i18n import tr
from polyhead.viz.html_page import json_script, paragraph

Point = tuple[float, float]

MAX_POINTS = 400  # longer curves are averaged in groups: a screen has no more columns
LOG_RATIO = 30  # values with a larger ratio of maximum to minimum have a logarithmic axis
NEAR_ZERO = 0.4  # an axis includes zero if its smallest value is below this share of its largest
TOP, BOTTOM, RIGHT = 12, 42, 22  # margins in pixels; the left one depends on the ticks
X_SPACING, Y_SPACING = (100, 65), (50, 28)  # usual and smallest distance of ticks in pixels
_MAX_LABEL = 14  # characters
SI_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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


def format_number(value: float, digits: int = 3) -> str:
    """Format a number for people: 12,000 and 0.0312, not 12000.0 and 0.031200000000000002."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (1e-3 <= abs(value) < 1e15 and float(value).is_integer()):
        return f"{int(value):,}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-3 else f"{value:.{digits - 1}g}"


def format_short(value: float | None, digits: int = 3) -> str:
    """Format a number with an SI prefix: 1,234,567 as 1.23M; '-' for None."""
    if value is None:
        return "-"
    for scale, letter in SI_PREFIXES:
        if abs(value) >= scale * 0.9995:
            return f"{format_figures(value / scale, digits)}{letter}"
    return format_figures(value, digits)


def format_figures(value: float, digits: int) -> str:
    """Format with ``digits`` significant digits, never in scientific notation."""
    n_integer_digits = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - n_integer_digits)}f}" if value else "0"


class ChartAxis(NamedTuple):
    """A scale and the values of its ticks."""

    scale: Scale
    ticks: Sequence[float]
    format_tick: Callable[[float], str] = format_number

    def labels(self) -> list[tuple[float, str]]:
        """Pixel and text of each tick."""
        return [(self.scale.to_pixel(value), self.format_tick(value)) for value in self.ticks]


# ---- elements ----


def tag(name: str, kind: str, inner: str = "", **attributes: str | float) -> str:
    """An SVG element of the class ``kind`` with ``inner`` SVG; coordinates are rounded to a tenth of a
    pixel.
    """
    rest = ""
    for key, value in attributes.items():
        text = escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        rest += f' {key.replace("_", "-")}="{text}"'
    return f'<{name} class="{kind}"{rest}>{inner}</{name}>' if inner else f'<{name} class="{kind}"{rest}/>'


def text(kind: str, x: float, y: float, words: str) -> str:
    """A text with its base line at y; its class tells whether x is its start, its middle or its end."""
    return tag("text", kind, escape(words), x=x, y=y)


def svg(kind: str, w: int, h: int, alt_text: str, parts: Iterable[str], **attributes: str) -> str:
    """A complete SVG element with a text alternative for screen readers."""
    inner = "".join(parts)
    return tag("svg", kind, inner, viewBox=f"0 0 {w} {h}", role="img", **attributes, aria_label=alt_text)


def path(kind: str, points: Iterable[Point]) -> str:
    """A line through points in pixels."""
    return tag("path", kind, d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))


def clip_label(words: str) -> str:
    """Cut a label to the space of an axis."""
    return words if len(words) <= _MAX_LABEL else words[: _MAX_LABEL - 1] + "…"


# ---- ticks and axes ----


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value; both the smallest if the values differ only by rounding."""
    lo, hi = min(values), max(values)
    return lo, lo if math.isclose(lo, hi, rel_tol=1e-7) else hi


def linear_ticks(lo: float, hi: float, n: int = 5) -> list[float]:
    """About n round numbers (1, 2 or 5 times a power of ten) that enclose lo..hi."""
    if hi <= lo:
        lo, hi = lo - (abs(lo) or 1) / 2, hi + (abs(hi) or 1) / 2
    rough = (hi - lo) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / rough)))
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


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


def enclosing_axis(
    values: Sequence[float],
    start: float,
    end: float,
    spacing: tuple[int, int],
    from_zero: bool = False,
    log: bool | None = None,
) -> ChartAxis:
    """An axis from its first to its last tick, with all values in between; zero is included if it is near.

    ``log=None`` makes it logarithmic if the values are far apart, unless ``from_zero``.
    """
    (lo, hi), length = value_range(values), abs(end - start)
    if log is None:
        log = not from_zero and lo > 0 and hi / lo > LOG_RATIO
    if log:
        ticks = log_ticks(lo, hi)
        ticks = ticks if 1 < len(ticks) <= length / spacing[1] else power_ticks(lo, hi)
    else:
        lo = min(lo, 0.0) if from_zero or 0 < lo <= NEAR_ZERO * hi else lo
        ticks = linear_ticks(lo, hi, max(3, round(length / spacing[0])))
    return ChartAxis(Scale(ticks[0], ticks[-1], start, end, log), ticks)


def padded_axis(
    values: Sequence[float],
    start: float,
    end: float,
    spacing: tuple[int, int],
    padding: float = 0.0,
    log: bool = False,
    ticks: Sequence[float] = (),
) -> ChartAxis:
    """An axis of the range of the values, widened at both ends by a share of it; its ticks lie within.

    The ticks are ``ticks`` or round numbers.
    """
    lo, hi = value_range(values)
    if log:
        round_ticks = log_ticks(lo, hi)
        lo, hi = lo / (1 + padding), hi * (1 + padding)
    else:
        margin = padding * ((hi - lo) or abs(hi) or 1.0)
        lo, hi = lo - margin, hi + margin
        round_ticks = linear_ticks(lo, hi, max(3, round(abs(end - start) / spacing[0])))
    inside = [tick for tick in ticks or round_ticks if lo <= tick <= hi]
    return ChartAxis(Scale(lo, hi if hi > lo else lo + 1, start, end, log), inside or [lo])


def left_margin(labels: Iterable[str]) -> float:
    """Space for the texts to the left of a chart."""
    return 16 + 7.2 * max(map(len, labels))


def x_tick_labels(axis: ChartAxis, y: float) -> list[str]:
    """The texts of the ticks of an x axis; y is their base line."""
    return [text("tick middle", x, y, label) for x, label in axis.labels()]


def y_tick_labels(axis: ChartAxis, x: float) -> list[str]:
    """The texts of the ticks of a y axis; they end at x."""
    return [text("tick end", x, y + 4, label) for y, label in axis.labels()]


def draw_axes(x: ChartAxis, y: ChartAxis, x_label: str, y_label: str = "") -> list[str]:
    """The x axis with its ticks below, grid lines with the y ticks to the left, and the
    titles of the axes.
    """
    left, right = x.scale.start, x.scale.end
    top, bottom = sorted((y.scale.start, y.scale.end))
    return [
        *(tag("line", "grid", x1=left, x2=right, y1=at, y2=at) for at, _ in y.labels()),
        *y_tick_labels(y, left - 8),
        *(tag("line", "axis", x1=at, x2=at, y1=bottom, y2=bottom + 5) for at, _ in x.labels()),
        *x_tick_labels(x, bottom + 19),
        tag("line", "axis", x1=left, x2=right, y1=bottom, y2=bottom),
        text("label end", right, bottom + 37, x_label),
        *([text("label", left + 6, top - 10, y_label)] if y_label else []),
    ]


def format_scale(scale: Scale) -> str:
    """A scale in the format that the script of the page reads."""
    return " ".join(f"{v:.10g}" for v in (*scale[:4], int(scale.is_log)))


# ---- line charts ----


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Average equal groups of neighbouring points, so that pages stay small; drop non-finite values."""
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    size = -(-len(finite) // max_points)
    if size <= 1:
        return finite
    groups = [finite[i : i + size] for i in range(0, len(finite), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


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
    xs, ys = ([point[i] for curve in curves for point in curve.points] for i in (0, 1))
    y = enclosing_axis(ys, height - BOTTOM, TOP, Y_SPACING, from_zero)
    left, right = left_margin(label for _, label in y.labels()), width - RIGHT
    ticks: Sequence[float] = sorted(set(xs)) if log_x else ()  # the measured values if they are few
    few = ticks[:: math.ceil(len(ticks) * X_SPACING[1] / (right - left)) or 1]
    ticks = few if len(ticks) <= 12 else log_ticks(ticks[0], ticks[-1])
    x = padded_axis(xs, left, right, X_SPACING, log=log_x, ticks=ticks)
    parts = draw_axes(x, y, x_label)
    for i, curve in enumerate(curves):
        pixels = [(x.scale.to_pixel(a), y.scale.to_pixel(b)) for a, b in curve.points]
        parts.append(path(f"curve c{i}", pixels))
        if len(pixels) <= 24:
            parts += [tag("circle", f"dot c{i}", cx=a, cy=b, r=3) for a, b in pixels]
    scales = {"data_x": format_scale(x.scale), "data_y": format_scale(y.scale)}
    return svg("chart", width, height, describe_curves(curves, x_label, y_label), parts, **scales)


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


# ---- figures of a page ----


def legend(names: Sequence[str], values: Sequence[str] = (), has_numbers: bool = False) -> str:
    """HTML of the names in the colours c0, c1, ..., with a value each that the script of
    the page replaces.
    """
    badges = [f'<span class="badge">{i}</span>' if has_numbers else "" for i in range(1, len(names) + 1)]
    outputs = [f" <output>{value}</output>" for value in values] or [""] * len(names)
    return "".join(
        f'<span class="key c{i}">{badge}{escape(name)}{output}</span>'
        for i, (badge, name, output) in enumerate(zip(badges, names, outputs, strict=True))
    )


def line_figure(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    *sizes: tuple[int, int],
    note: str = "",
    kind: str = "plot",
    has_numbers: bool = False,
    from_zero: bool = False,
    log_x: bool = False,
) -> str:
    """A line chart with title, caption, a legend of values, and the data for the script of the page.

    Of several sizes the style sheet shows the one that fits. A legend of one curve does not name it; curves
    without finite values are left out.
    """
    finite = [curve._replace(points=downsample(curve.points)) for curve in curves]
    shown = [curve for curve in finite if curve.points]
    names = [curve.name if len(curves) > 1 else "" for curve in shown]
    last_x = format_number(max(curve.points[-1][0] for curve in shown))
    charts = "".join(line_chart(shown, x_label, title, *size, from_zero, log_x) for size in sizes)
    data = [  # x is an integer where a fraction makes no difference
        [
            [round(x) if x == round(x) or abs(x) >= 1000 else float(f"{x:.6g}"), float(f"{y:.4g}")]
            for x, y in curve.points
        ]
        for curve in shown
    ]
    return (
        f'<figure class="{kind}{" sizes" * (len(sizes) > 1)}"><figcaption><b>{escape(title)}</b>'
        f"{legend(names, [format_number(c.points[-1][1]) for c in shown], has_numbers)}"
        f'<span class="at">{escape(x_label)} <output>{last_x}</output></span>{paragraph(note)}</figcaption>'
        f"{charts}{json_script(data)}</figure>"
    )
