"""Plots without a script: matrices as images, fronts of two measures, and scattered points.

Of a matrix each number is a cell, of one colour above zero and another below.
The two colours are masks over the colours of the style sheet, so the image follows light and dark mode
without a script; the script shows the value of a cell.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from html import escape
from itertools import product
from typing import Any, NamedTuple

from rich.cells import cell_len

from polyhead.core.array_types import HasToList
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.viz.html_page import json_script, paragraph
from polyhead.viz.plot import (
    BOTTOM,
    RIGHT,
    X_SPACING,
    Y_SPACING,
    ChartAxis,
    Scale,
    clip_label,
    draw_axes,
    enclosing_axis,
    format_number,
    left_margin,
    linear_ticks,
    padded_axis,
    path,
    svg,
    tag,
    text,
    x_tick_labels,
    y_tick_labels,
)

_SHADE_STEPS = 127  # number of shades on each side of zero
_NARROW_SIZE = (340, 248)  # pixels of a wide image on a narrow screen


class Matrix(NamedTuple):
    """Numbers in rows and columns, with titles; ``row`` and ``column`` are translated when plotted."""

    title: str
    values: Any  # nested lists, or an object with ``tolist`` (numpy, torch)
    row: str = "position"
    column: str = "position"
    first_row: int = 0
    first_column: int = 0
    caption: str = ""


def matrix_figure(matrix: Matrix, width: int = 300, height: int = 248) -> str:
    """The matrix with title, axes and colour range; ``height`` is the height of all cells.

    An image wider than ``_NARROW_SIZE`` is also drawn in that size, and the style sheet shows the one that
    fits.
    """
    rows = to_rows(matrix)
    max_abs = max((abs(v) for row in rows for v in row), default=0.0) or 1.0
    shades = [[round(_SHADE_STEPS * v / max_abs) for v in row] for row in rows]
    encoded = base64.b64encode(bytes(v & 255 for row in shades for v in row)).decode()
    has_negative = any(v < 0 for row in shades for v in row)
    low_label, kind = (f"−{format_number(max_abs)}", "both") if has_negative else ("0", "plus")
    ramp = (
        f'<p class="ramp2"><span>{low_label}</span><i class="{kind}"></i>'
        f'<span>{format_number(max_abs)}</span><output aria-live="polite"></output></p>'
    )
    data = {"rows": len(rows), "columns": len(rows[0]), "most": max_abs, "values": encoded,
                 "row": tr(matrix.row), "column": tr(matrix.column), "first": [matrix.first_row,
                     matrix.first_column]}  # fmt: skip
    sizes = [(width, height)]
    if width > _NARROW_SIZE[0]:
        sizes.append((_NARROW_SIZE[0], min(height, _NARROW_SIZE[1])))
    pictures = "".join(matrix_svg(matrix, shades, *size) for size in sizes)
    return (
        f'<figure class="card matrix{" sizes" * (len(sizes) > 1)}"><figcaption><b>{escape(matrix.title)}</b>'
        f"</figcaption>{pictures}{ramp}{paragraph(matrix.caption)}{json_script(data)}</figure>"
    )


def to_rows(matrix: Matrix) -> list[list[float]]:
    """The numbers as lists; a UserError unless all rows have equal length and all numbers are finite."""
    values = matrix.values
    rows = values.tolist() if isinstance(values, HasToList) else [list(row) for row in values]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise UserError(f"{matrix.title}: a matrix requires rows of equal length and at least one number")
    if not all(math.isfinite(v) for row in rows for v in row):
        raise UserError(f"{matrix.title}: a value is not finite; did the training diverge?")
    return rows


def matrix_svg(matrix: Matrix, shades: Sequence[Sequence[int]], width: int, height: int) -> str:
    """An SVG element: two masked rectangles, and ticks at round numbers."""
    n, m = len(shades), len(shades[0])
    left, top, bottom = 44, 6, 36
    across, total = width - left - 8, top + height + bottom
    name = hashlib.sha256(repr((matrix.title, shades, width)).encode()).hexdigest()[:12]
    frame: dict[str, Any] = {"x": left, "y": top, "width": across, "height": height}
    parts = [tag("rect", "zero", **frame)]
    for sign, kind in ((1, "plus"), (-1, "minus")):
        alpha = [bytes(255 * max(0, sign * v) // _SHADE_STEPS for v in row) for row in shades]
        if not any(map(any, alpha)):
            continue
        data = base64.b64encode(encode_png(alpha)).decode()
        image = tag("image", "", preserveAspectRatio="none", href=f"data:image/png;base64,{data}", **frame)
        parts.append(f'<mask id="{kind}{name}">{image}</mask>')
        parts.append(tag("rect", kind, mask=f"url(#{kind}{name})", **frame))
    columns = index_axis(matrix.first_column, m, left, left + across)
    rows = index_axis(matrix.first_row, n, top, top + height)
    parts += [*x_tick_labels(columns, top + height + 16), *y_tick_labels(rows, left - 6)]
    parts.append(text("label end", left + across, total - 4, tr(matrix.column)))
    turned = f"translate(11 {top}) rotate(-90)"
    parts.append(tag("text", "label end", escape(tr(matrix.row)), transform=turned))
    label = tr("{title}: {rows} by {columns}; arrow keys read it", title=matrix.title, rows=n, columns=m)
    box = f"{left} {top} {across} {height}"
    return svg("matrix", width, total, label, parts, tabindex="0", data_frame=box)


def index_axis(first: int, n: int, start: int, end: int) -> ChartAxis:
    """The axis of n cells, numbered from ``first``; a tick is in the middle of its cell."""
    return ChartAxis(
        Scale(first - 0.5, first + n - 0.5, start, end), round_ticks(first, first + n - 1, end - start)
    )


def round_ticks(low: int, high: int, pixels: int) -> list[int]:
    """Round integers from ``low`` to ``high``, with a minimum distance."""
    max_ticks = max(1, min(high - low, pixels // 45))
    ticks = [int(v) for v in linear_ticks(low, high, max_ticks) if float(v).is_integer() and low <= v <= high]
    return ticks or [low]


def encode_png(alpha: Sequence[bytes]) -> bytes:
    """A white PNG image with the opacity ``alpha``, one byte per cell (PNG specification, colour type 4)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", len(alpha[0]), len(alpha), 8, 4, 0, 0, 0)
    lines = b"".join(b"\0" + b"".join(bytes((255, a)) for a in row) for row in alpha)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


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
    # the fewest digits, 3 to 7, that distinguish all ticks
    texts = {n: {chart.format_cost(tick, n) for tick in x.ticks} for n in range(3, 7)}
    digits = next((n for n in texts if len(texts[n]) == len(x.ticks)), 7)
    x = x._replace(format_tick=lambda value: chart.format_cost(value, digits))
    pixels = [(x.scale.to_pixel(dot.x), y.scale.to_pixel(dot.y)) for dot in points]
    parts = draw_axes(x, y, chart.cost, tr("{measure}, better is up", measure=chart.quality))
    frontier = find_frontier(points, chart.lower_is_better)
    # cheapest first, with a step at each design, as values between are unknown
    (first, *rest) = (
        (f"{x.scale.to_pixel(dot.x):.1f}", f"{y.scale.to_pixel(dot.y):.1f}") for dot in frontier
    )
    steps = "".join(f"H{across}V{up}" for across, up in rest)
    parts.append(tag("path", "frontier", d=f"M{' '.join(first)}{steps}H{x.scale.end}"))
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


Box = tuple[float, float, float, float]  # left, top, right, bottom

RADIUS, HEIGHT, MARGIN = 3.0, 13.0, 16.0  # pixels


class PointLabel(NamedTuple):
    """The label of point i, from (x, y) to the right."""

    i: int
    x: float
    y: float
    text: str


def scatter_svg(
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    kinds: Sequence[int],
    title: str,
    size: tuple[int, int],
) -> str:
    """An SVG element with a dot for every point, and the names that fit, the first points first.

    Both axes have the same unit, so that distances can be compared; ``kinds`` are the colours c0, c1, ...
    """
    pixels = fit_points(points, size)
    parts = [
        tag("circle", f"point c{kind}", data_i=str(i), cx=x, cy=y, r=RADIUS)
        for i, ((x, y), kind) in enumerate(zip(pixels, kinds, strict=True))
    ]
    parts += [
        text(f"name c{kinds[label.i]}", label.x, label.y, label.text)
        for label in place_labels(pixels, names, size)
    ]
    return svg("cloud", *size, tr("{title}: {n} points", title=title, n=len(points)), parts)


def fit_points(points: Sequence[tuple[float, float]], size: tuple[int, int]) -> list[tuple[float, float]]:
    """Coordinates in pixels, scaled to fit the frame and centred; larger y is higher."""
    xs, ys = zip(*points, strict=True)
    spans = (max(xs) - min(xs), max(ys) - min(ys))
    scale = (
        min((side - 2 * MARGIN) / span for side, span in zip(size, spans, strict=True) if span > 0)
        if any(spans)
        else 1.0
    )
    middle = ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2)
    return [(size[0] / 2 + scale * (x - middle[0]), size[1] / 2 - scale * (y - middle[1])) for x, y in points]


def place_labels(
    pixels: Sequence[tuple[float, float]], names: Sequence[str], size: tuple[int, int], max_labels: int = 120
) -> list[PointLabel]:
    """Place the labels that cover no other label, no point and no edge; the first names first."""
    occupied: list[Box] = []
    labels: list[PointLabel] = []
    for i, ((px, py), name) in enumerate(zip(pixels, names, strict=True)):
        label = clip_label(name)
        width = 6.6 * cell_len(label) + 2
        gap = RADIUS + 2
        for x, y in (
            (px + gap, py + 4),
            (px - gap - width, py + 4),
            *product((px - width / 2,), (py - gap - 2, py + gap + 9)),
        ):
            box = (x, y - HEIGHT + 3, x + width, y + 3)
            is_inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            covers_point = any(
                box[0] - RADIUS < a < box[2] + RADIUS and box[1] - RADIUS < b < box[3] + RADIUS
                for a, b in pixels
            )
            if is_inside and not covers_point and not any(boxes_overlap(other, box) for other in occupied):
                labels.append(PointLabel(i, x, y, label))
                occupied.append(box)
                break
        if len(labels) == max_labels:
            break
    return labels


def boxes_overlap(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
