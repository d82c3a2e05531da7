"""Plot a matrix as an image: one cell per number, one colour above zero and another below.

The two colours are masks over the colours of the style sheet, so the image follows light and dark mode
without a script; the script shows the value of a cell.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.viz.html_page import json_script
from polyhead.viz.plot import (
    ChartAxis,
    Scale,
    format_number,
    linear_ticks,
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
        f'<p class="ramp2"><span>{low_label}</span><i '
        f'class="{kind}"></i><span>{format_number(max_abs)}</span>'
        '<output aria-live="polite"></output></p>'
    )
    data = {"rows": len(rows), "columns": len(rows[0]), "most": max_abs, "values": encoded,
                 "row": tr(matrix.row), "column": tr(matrix.column), "first": [matrix.first_row,
                     matrix.first_column]}  # fmt: skip
    caption = f'<p class="about">{escape(matrix.caption)}</p>' if matrix.caption else ""
    sizes = [(width, height)]
    if width > _NARROW_SIZE[0]:
        sizes.append((_NARROW_SIZE[0], min(height, _NARROW_SIZE[1])))
    pictures = "".join(matrix_svg(matrix, shades, *size) for size in sizes)
    return (
        f'<figure class="card matrix{" sizes" * (len(sizes) > 1)}"><figcaption><b>{escape(matrix.title)}</b>'
        f"</figcaption>{pictures}{ramp}{caption}{json_script(data)}</figure>"
    )


def to_rows(matrix: Matrix) -> list[list[float]]:
    """The numbers as lists; a UserError unless all rows have equal length and all numbers are finite."""
    values = matrix.values
    rows = values.tolist() if hasattr(values, "tolist") else [list(row) for row in values]
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
