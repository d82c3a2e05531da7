import base64
import json
import re
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.viz.plots import Matrix, encode_png, matrix_figure, round_ticks

VALUES = np.random.default_rng(0).normal(size=(7, 11)) * 3


def read_png(data):
    """The opacity of each pixel of a PNG of white with opacity, read by the specification alone."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert int.from_bytes(data[at + 8 + length : at + 12 + length]) == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height = int.from_bytes(chunks[b"IHDR"][:4]), int.from_bytes(chunks[b"IHDR"][4:8])
    assert chunks[b"IHDR"][8:] == bytes([8, 4, 0, 0, 0])  # 8 bits, grey and opacity
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 2 * width)
    assert not lines[:, 0].any()
    assert (lines[:, 1::2] == 255).all()
    return lines[:, 2::2]


def read_masks(html):
    """The two colours of a figure, by the class of the rectangle that each masks."""
    svg = parse_svg(html)
    images = {e.get("id"): e[0].get("href") for e in svg.iter("mask")}
    classes = {e.get("class"): e.get("mask") for e in svg.iter("rect") if e.get("mask")}
    return {
        kind: read_png(base64.b64decode(images[mask[5:-1]].removeprefix("data:image/png;base64,")))
        for kind, mask in classes.items()
    }


def parse_svg(html):
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])


def test_opacity_is_fraction_of_largest_number():
    masks = read_masks(matrix_figure(Matrix("t", VALUES)))
    largest = np.abs(VALUES).max()
    for name, expected in (("plus", np.maximum(VALUES, 0)), ("minus", np.maximum(-VALUES, 0))):
        np.testing.assert_allclose(masks[name] / 255 * largest, expected, atol=largest / 120)
    assert set(read_masks(matrix_figure(Matrix("t", abs(VALUES))))) == {"plus"}
    figures = [matrix_figure(Matrix(*args)) for args in (("a", VALUES), ("b", VALUES), ("a", -VALUES))]
    assert len({name for html in figures for name in re.findall(r'mask id="(\w+)"', html)}) == 6
    # zeros have no mask, and text is escaped
    html = matrix_figure(Matrix("<b>", [[0.0, 0.0]], caption="<i>"))
    assert read_masks(html) == {}
    assert "<b>&lt;b&gt;</b>" in html and "<i>&" not in html
    assert read_png(encode_png([bytes([0, 255])])).tolist() == [[0, 255]]


def test_script_has_same_numbers():
    html = matrix_figure(Matrix("t", torch.tensor(VALUES), "row", "column", 1, -5))
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    values = np.frombuffer(base64.b64decode(data["values"]), np.int8) / 127 * data["most"]
    expected = pytest.approx(VALUES, abs=data["most"] / 250)
    assert values.reshape(data["rows"], data["columns"]) == expected
    assert (data["row"], data["column"], data["first"]) == ("row", "column", [1, -5])


def test_ticks_are_at_centers_of_cells():
    svg = parse_svg(matrix_figure(Matrix("t", VALUES, first_column=-5), width=52 + 110, height=70))
    x, _, width, height = map(float, svg.get("data-frame").split())
    ticks = {e.text: float(e.get("x")) for e in svg.iter("text") if e.get("class") == "tick middle"}
    assert ticks == {v: x + width * (int(v) + 5.5) / 11 for v in ("-5", "0", "5")}
    assert (width, height) == (110, 70)
    assert round_ticks(3, 3, 200) == [3]
    assert all(0 <= v <= 4 for v in round_ticks(0, 4, 1000))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "at least one number"),
        ([[1, 2], [3]], "rows of equal length"),
        ([[float("nan")]], "a value is not finite"),
    ],
)
def test_invalid_matrix_is_an_error(values, message):
    with pytest.raises(UserError, match=f"t: .*{message}"):
        matrix_figure(Matrix("t", values))
