from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len

from polyhead.viz.plots import RADIUS, boxes_overlap, fit_points, place_labels, scatter_svg

SIZE = (400, 300)
POINTS = [(float(x), float(y)) for x, y in np.random.default_rng(0).normal(size=(200, 2)) * (5, 1)]
NAMES = [f"word{i}" if i % 3 else "星期" for i in range(200)]


def test_points_fit_with_equal_scales():
    pixels, points = np.array(fit_points(POINTS, SIZE)), np.array(POINTS)
    scale = np.linalg.norm(pixels[1:] - pixels[0], axis=1) / np.linalg.norm(points[1:] - points[0], axis=1)
    np.testing.assert_allclose(scale, scale[0])
    assert ((pixels > 15) & (pixels < np.array(SIZE) - 15)).all()
    assert (np.sign(np.diff(pixels[:, 1])) == -np.sign(np.diff(points[:, 1]))).all()
    assert np.ptp(pixels[:, 0]) == pytest.approx(400 - 32)
    assert fit_points([(3.0, 3.0)] * 2, SIZE) == [(200, 150)] * 2
    assert fit_points([(0.0, 1.0), (0.0, 3.0)], SIZE) == [(200, 284), (200, 16)]


def find_box(label):
    return (label.x, label.y - 10, label.x + 6 * cell_len(label.text), label.y + 2)


def test_labels_overlap_neither_points_nor_labels():
    pixels = fit_points(POINTS, SIZE)
    labels = place_labels(pixels, NAMES, SIZE)
    assert len(labels) > 12
    for a, b in combinations(labels, 2):
        assert not boxes_overlap(find_box(a), find_box(b))
    for label in labels:
        left, top, right, bottom = find_box(label)
        assert min(left, top) >= 0
        assert right <= SIZE[0] and bottom <= SIZE[1]
        assert not any(left < x < right and top < y < bottom for x, y in pixels)
        x, y = pixels[label.i]
        assert max(left - x, x - right, top - y, y - bottom) <= 4 * RADIUS
        assert label.text == NAMES[label.i]
    assert len(place_labels(pixels, NAMES, SIZE, max_labels=3)) == 3
    # the first ones take the available space
    for x, names, expected in (
        (22.0, ["ab", "cd"], ["ab", "cd"]),  # right and left of the dot
        (12.0, ["abc", "de"], ["abc"]),
        (12.0, ["ab" * 5, "c"], ["c"]),
    ):
        assert [label.text for label in place_labels([(x, 12.0)] * 2, names, (44, 24))] == expected


def test_svg_has_colored_dot_per_point():
    svg = ElementTree.fromstring(scatter_svg(POINTS, NAMES, [i % 2 for i in range(200)], "a < b", SIZE))
    dots = list(svg.iter("circle"))
    assert [d.get("data-i") for d in dots] == [str(i) for i in range(200)]
    assert [d.get("class") for d in dots] == ["point c0", "point c1"] * 100
    centers = [(float(d.get("cx")), float(d.get("cy"))) for d in dots]
    np.testing.assert_allclose(centers, fit_points(POINTS, SIZE), atol=0.051)
    assert svg.get("aria-label") == "a < b: 200 points"
