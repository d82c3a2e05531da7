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
from polyhead.viz.svg_charts import format_number, linear_ticks

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
        f'<p class="ramp2"><span>{low_label}</span><i class="{kind}"></i><span>{format_number(max_abs)}</span>'
        '<output aria-live="polite"></output></p>'
    )
    data = {"rows": len(rows), "columns": len(rows[0]), "most": max_abs, "values": encoded,
                 "row": tr(matrix.row), "column": tr(matrix.column), "first": [matrix.first_row, matrix.first_column]}  # fmt: skip
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
        raise UserError(f"{matrix.title}: a matrix needs rows of one length, and at least one number")
    if not all(math.isfinite(v) for row in rows for v in row):
        raise UserError(f"{matrix.title}: a value is no number; did the training diverge?")
    return rows


def matrix_svg(matrix: Matrix, shades: Sequence[Sequence[int]], width: int, height: int) -> str:
    """An SVG element: two masked rectangles, and ticks at round numbers."""
    n, m = len(shades), len(shades[0])
    left, top, bottom = 44, 6, 36
    across = width - left - 8
    total = top + height + bottom
    name = hashlib.sha256(repr((matrix.title, shades, width)).encode()).hexdigest()[:12]
    label = tr("{title}: {rows} by {columns}; arrow keys read it", title=matrix.title, rows=n, columns=m)
    frame = f'x="{left}" y="{top}" width="{across}" height="{height}"'
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width} {total}" role="img" tabindex="0" data-frame="{left} {top} {across} {height}" '
        f'aria-label="{escape(label)}"><rect class="zero" {frame}/>'
    ]
    for sign, kind in ((1, "plus"), (-1, "minus")):
        alpha = [bytes(255 * max(0, sign * v) // _SHADE_STEPS for v in row) for row in shades]
        if not any(map(any, alpha)):
            continue
        image = f'<image {frame} preserveAspectRatio="none" href="data:image/png;base64,{base64.b64encode(encode_png(alpha)).decode()}"/>'
        parts.append(
            f'<mask id="{kind}{name}">{image}</mask><rect class="{kind}" {frame} mask="url(#{kind}{name})"/>'
        )
    for value in round_ticks(matrix.first_column, matrix.first_column + m - 1, across):
        x = left + across * (value - matrix.first_column + 0.5) / m
        parts.append(
            f'<text class="tick middle" x="{x:.1f}" y="{top + height + 16}">{format_number(value)}</text>'
        )
    for value in round_ticks(matrix.first_row, matrix.first_row + n - 1, height):
        y = top + height * (value - matrix.first_row + 0.5) / n
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y + 4:.1f}">{format_number(value)}</text>')
    parts.append(
        f'<text class="label end" x="{left + across}" y="{total - 4}">{escape(tr(matrix.column))}</text>'
    )
    parts.append(
        f'<text class="label end" transform="translate(11 {top}) rotate(-90)">{escape(tr(matrix.row))}</text>'
    )
    return "".join([*parts, "</svg>"])


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
