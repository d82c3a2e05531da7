"""Points in the plane with names: all can be read under the pointer, some are written beside their point."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import product
from typing import NamedTuple

from polyhead.analysis.heat_map import clipped, columns
from polyhead.core.i18n import tr

Box = tuple[float, float, float, float]  # left, top, right, bottom

RADIUS, HEIGHT, MARGIN = 3.0, 13.0, 16.0  # pixels


class Label(NamedTuple):
    """The name of point i, written from (x, y) on to the right."""

    i: int
    x: float
    y: float
    text: str


def scatter(
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    kinds: Sequence[int],
    title: str,
    size: tuple[int, int],
) -> str:
    """An SVG element with a dot for every point, and the names that find room, the first points first.

    One unit is equally long in both directions, so distances can be compared; ``kinds`` give the colours c0, c1, ...
    """
    pixels = fit(points, size)
    dots = "".join(
        f'<circle class="point c{kind}" data-i="{i}" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>'
        for i, ((x, y), kind) in enumerate(zip(pixels, kinds, strict=True))
    )
    labels = "".join(
        f'<text class="name c{kinds[label.i]}" x="{label.x:.1f}" y="{label.y:.1f}">{escape(label.text)}</text>'
        for label in place(pixels, names, size)
    )
    return (
        f'<svg class="cloud" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        f'aria-label="{escape(tr("{title}: {n} points", title=title, n=len(points)))}">{dots}{labels}</svg>'
    )


def fit(points: Sequence[tuple[float, float]], size: tuple[int, int]) -> list[tuple[float, float]]:
    """Coordinates as pixels: as large as the frame allows, in its middle, upwards what is greater."""
    xs, ys = zip(*points, strict=True)
    spans = (max(xs) - min(xs), max(ys) - min(ys))
    scale = (
        min((side - 2 * MARGIN) / span for side, span in zip(size, spans, strict=True) if span > 0)
        if any(spans)
        else 1.0
    )
    middle = ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2)
    return [(size[0] / 2 + scale * (x - middle[0]), size[1] / 2 - scale * (y - middle[1])) for x, y in points]


def place(
    pixels: Sequence[tuple[float, float]], names: Sequence[str], size: tuple[int, int], at_most: int = 120
) -> list[Label]:
    """The names that can be written where they cover no other name, no point and no edge; the first names first."""
    taken: list[Box] = []
    labels: list[Label] = []
    for i, ((px, py), name) in enumerate(zip(pixels, names, strict=True)):
        text = clipped(name)
        width = 6.6 * columns(text) + 2
        gap = RADIUS + 2
        for x, y in (
            (px + gap, py + 4),
            (px - gap - width, py + 4),
            *product((px - width / 2,), (py - gap - 2, py + gap + 9)),
        ):
            box = (x, y - HEIGHT + 3, x + width, y + 3)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if inside and not any(map(overlap, taken, [box] * len(taken))) and not covers(box, pixels):
                labels.append(Label(i, x, y, text))
                taken.append(box)
                break
        if len(labels) == at_most:
            break
    return labels


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share any ground."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def covers(box: Box, pixels: Sequence[tuple[float, float]]) -> bool:
    """Whether a dot lies under the box."""
    left, top, right, bottom = (box[0] - RADIUS, box[1] - RADIUS, box[2] + RADIUS, box[3] + RADIUS)
    return any(left < x < right and top < y < bottom for x, y in pixels)
