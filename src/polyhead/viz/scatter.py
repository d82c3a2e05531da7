"""Scatter plot with names: all are shown on hover, some next to their points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from rich.cells import cell_len

from polyhead.core.i18n import tr
from polyhead.viz.plot import clip_label, svg, tag, text

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
            if (
                is_inside
                and not any(map(boxes_overlap, occupied, [box] * len(occupied)))
                and not covers_point(box, pixels)
            ):
                labels.append(PointLabel(i, x, y, label))
                occupied.append(box)
                break
        if len(labels) == max_labels:
            break
    return labels


def boxes_overlap(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def covers_point(box: Box, pixels: Sequence[tuple[float, float]]) -> bool:
    """Whether the box covers a dot."""
    left, top, right, bottom = (box[0] - RADIUS, box[1] - RADIUS, box[2] + RADIUS, box[3] + RADIUS)
    return any(left < x < right and top < y < bottom for x, y in pixels)
