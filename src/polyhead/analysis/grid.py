"""A matrix as a picture: a cell for every number, one colour above zero and another below.

The two colours are masks over what the page's style says, so the picture follows light and dark without a script; the
script adds what a cell holds.
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

from polyhead.analysis.charts import number, ticks
from polyhead.analysis.page import data
from polyhead.core.i18n import tr
from polyhead.errors import UserError

STEPS = 127  # shades on each side of zero
NARROW = (340, 248)  # pixels: of a wide picture on a narrow screen


class Grid(NamedTuple):
    """Numbers in rows and columns, and what to call them; ``row`` and ``column`` are translated when they are drawn."""

    title: str
    values: Any  # nested lists, or anything that has ``tolist`` (numpy, torch)
    row: str = "position"
    column: str = "position"
    first_row: int = 0
    first_column: int = 0
    about: str = ""


def grid_figure(grid: Grid, width: int = 300, height: int = 248) -> str:
    """The matrix with its name, its axes and the range of its colours; ``height`` is that of the cells together.

    A picture wider than ``NARROW`` is drawn in that size too, and the style shows the one that fits.
    """
    rows = as_rows(grid)
    most = max((abs(v) for row in rows for v in row), default=0.0) or 1.0
    shades = [[round(STEPS * v / most) for v in row] for row in rows]
    packed = base64.b64encode(bytes(v & 255 for row in shades for v in row)).decode()
    below = any(v < 0 for row in shades for v in row)
    least, kind = (f"−{number(most)}", "both") if below else ("0", "plus")
    ramp = (
        f'<p class="ramp2"><span>{least}</span><i class="{kind}"></i><span>{number(most)}</span>'
        '<output aria-live="polite"></output></p>'
    )
    described = {"rows": len(rows), "columns": len(rows[0]), "most": most, "values": packed,
                 "row": tr(grid.row), "column": tr(grid.column), "first": [grid.first_row, grid.first_column]}  # fmt: skip
    about = f'<p class="about">{escape(grid.about)}</p>' if grid.about else ""
    sizes = [(width, height)]
    if width > NARROW[0]:
        sizes.append((NARROW[0], min(height, NARROW[1])))
    pictures = "".join(picture(grid, shades, *size) for size in sizes)
    return (
        f'<figure class="card matrix{" sizes" * (len(sizes) > 1)}"><figcaption><b>{escape(grid.title)}</b>'
        f"</figcaption>{pictures}{ramp}{about}{data(described)}</figure>"
    )


def as_rows(grid: Grid) -> list[list[float]]:
    """The numbers as lists, all rows equally long, all finite."""
    given = grid.values
    rows = given.tolist() if hasattr(given, "tolist") else [list(row) for row in given]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise UserError(f"{grid.title}: a matrix needs rows of one length, and at least one number")
    if not all(math.isfinite(v) for row in rows for v in row):
        raise UserError(f"{grid.title}: a value is no number; did the training diverge?")
    return rows


def picture(grid: Grid, shades: Sequence[Sequence[int]], width: int, down: int) -> str:
    """An SVG element: two masked rectangles, and ticks at round numbers."""
    n, m = len(shades), len(shades[0])
    left, top, bottom = 44, 6, 36
    across = width - left - 8
    total = top + down + bottom
    name = hashlib.sha256(repr((grid.title, shades, width)).encode()).hexdigest()[:12]
    label = tr("{title}: {rows} by {columns}; arrow keys read it", title=grid.title, rows=n, columns=m)
    frame = f'x="{left}" y="{top}" width="{across}" height="{down}"'
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width} {total}" role="img" tabindex="0" data-frame="{left} {top} {across} {down}" '
        f'aria-label="{escape(label)}"><rect class="zero" {frame}/>'
    ]
    for sign, kind in ((1, "plus"), (-1, "minus")):
        alpha = [bytes(255 * max(0, sign * v) // STEPS for v in row) for row in shades]
        if not any(map(any, alpha)):
            continue
        image = f'<image {frame} preserveAspectRatio="none" href="data:image/png;base64,{base64.b64encode(png(alpha)).decode()}"/>'
        parts.append(
            f'<mask id="{kind}{name}">{image}</mask><rect class="{kind}" {frame} mask="url(#{kind}{name})"/>'
        )
    for value in round_ticks(grid.first_column, grid.first_column + m - 1, across):
        x = left + across * (value - grid.first_column + 0.5) / m
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{top + down + 16}">{number(value)}</text>')
    for value in round_ticks(grid.first_row, grid.first_row + n - 1, down):
        y = top + down * (value - grid.first_row + 0.5) / n
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y + 4:.1f}">{number(value)}</text>')
    parts.append(
        f'<text class="label end" x="{left + across}" y="{total - 4}">{escape(tr(grid.column))}</text>'
    )
    parts.append(
        f'<text class="label end" transform="translate(11 {top}) rotate(-90)">{escape(tr(grid.row))}</text>'
    )
    return "".join([*parts, "</svg>"])


def round_ticks(first: int, last: int, pixels: int) -> list[int]:
    """Round whole numbers from first to last, not too near to each other."""
    wanted = max(1, min(last - first, pixels // 45))
    found = [int(v) for v in ticks(first, last, wanted) if float(v).is_integer() and first <= v <= last]
    return found or [first]


def png(alpha: Sequence[bytes]) -> bytes:
    """An image of white whose opacity is given, a byte a cell (PNG specification, colour type 4)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", len(alpha[0]), len(alpha), 8, 4, 0, 0, 0)
    lines = b"".join(b"\0" + b"".join(bytes((255, a)) for a in row) for row in alpha)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
