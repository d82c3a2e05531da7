"""A picture holds every number of its matrix, in its place and colour."""

import base64
import json
import re
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.viz.matrix_plot import Matrix, encode_png, matrix_figure, round_ticks

VALUES = np.random.default_rng(0).normal(size=(7, 11)) * 3


def pixels(data):
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


def masks(html):
    """The two colours of a figure, by the class of the rectangle that is seen through each."""
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.S)[0])
    images = {e.get("id"): e[0].get("href") for e in svg.iter("mask")}
    seen = {e.get("class"): e.get("mask") for e in svg.iter("rect") if e.get("mask")}
    return {
        kind: pixels(base64.b64decode(images[place[5:-1]].removeprefix("data:image/png;base64,")))
        for kind, place in seen.items()
    }


def test_the_opacity_of_each_cell_is_its_share_of_the_greatest_number():
    found = masks(matrix_figure(Matrix("t", VALUES)))
    most = np.abs(VALUES).max()
    np.testing.assert_allclose(found["plus"] / 255 * most, np.maximum(VALUES, 0), atol=most / 120)
    np.testing.assert_allclose(found["minus"] / 255 * most, np.maximum(-VALUES, 0), atol=most / 120)
    assert set(masks(matrix_figure(Matrix("t", abs(VALUES))))) == {"plus"}


def test_the_script_is_given_the_same_numbers():
    html = matrix_figure(Matrix("t", torch.tensor(VALUES), "here", "there", 1, -5))
    told = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    read = (
        np.frombuffer(base64.b64decode(told["values"]), np.int8).reshape(told["rows"], told["columns"])
        / 127
        * told["most"]
    )
    np.testing.assert_allclose(read, VALUES, atol=told["most"] / 250)
    assert (told["row"], told["column"], told["first"]) == ("here", "there", [1, -5])


def test_ticks_stand_in_the_middle_of_the_cells_they_name():
    html = matrix_figure(Matrix("t", VALUES, first_column=-5), width=52 + 110, height=70)
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.S)[0])
    (x, _, across, down) = map(float, svg.get("data-frame").split())
    ticks = [e for e in svg.iter("text") if e.get("class") == "tick middle"]
    assert {e.text: float(e.get("x")) for e in ticks} == {
        v: x + across * (int(v) + 5.5) / 11 for v in ("-5", "0", "5")
    }
    assert (across, down) == (110, 70)
    assert round_ticks(3, 3, 200) == [3]
    assert all(0 <= v <= 4 for v in round_ticks(0, 4, 1000))


def test_equal_pictures_share_their_masks_and_others_do_not():
    names = [
        re.findall(r'mask id="(\w+)"', matrix_figure(grid))
        for grid in (Matrix("a", VALUES), Matrix("b", VALUES), Matrix("a", -VALUES))
    ]
    assert len({*names[0], *names[1], *names[2]}) == 6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "at least one number"),
        ([[1, 2], [3]], "rows of equal length"),
        ([[float("nan")]], "a value is not finite"),
    ],
)
def test_what_is_no_matrix_is_refused(values, message):
    with pytest.raises(UserError, match=f"t: .*{message}"):
        matrix_figure(Matrix("t", values))


def test_all_zero_is_an_empty_picture_and_text_is_escaped():
    html = matrix_figure(Matrix("<b>", [[0.0, 0.0]], caption="<i>"))
    assert masks(html) == {}
    assert "<b>&lt;b&gt;</b>" in html and "<i>&" not in html
    assert pixels(encode_png([bytes([0, 255])])).tolist() == [[0, 255]]
