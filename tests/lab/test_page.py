from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from polyhead.lab.dot_plot import render_dot_plot
from polyhead.lab.page import render_lab_page
from polyhead.lab.result import Claim, DotPlot, ExperimentResult, LinePlot, ResultTable
from polyhead.viz.svg_charts import Curve

NAN = math.nan
RESULT = ExperimentResult(
    "A <title>",
    "Why & what.",
    [
        Claim("a < b", "Somebody, 2020", "1 & 2", True),
        Claim("c > d", "Nobody", "3", False),
        Claim("e = f", "Anybody", "4", None),
        Claim("g", "Anybody", "5", None),
    ],
    [
        LinePlot("Loss", "step", [Curve("<x>", [(1, 4.0), (2, NAN), (3, 2.0)]), Curve("lost", [(1, NAN)])]),
        DotPlot("Loss", "nats", {"one": [1.0, 2.0], "two <b>": [NAN, 3.0], "none": [NAN, NAN]}),
        ResultTable("Numbers", ("name", "n"), [("<i>", 12000), ("b", 0.03125)], "About & so on"),
    ],
    "First.\n\nSecond.",
)


class Texts(HTMLParser):
    """What a reader reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def texts(html: str) -> list[str]:
    parser = Texts()
    parser.feed(html)
    return [text for text in parser.found if text.strip()]


def test_every_claim_stands_with_its_verdict_source_and_measurement():
    read = texts(render_lab_page(RESULT, False, "note"))
    for claim, verdict in zip(RESULT.claims, ("held", "did not hold", "undecided", "undecided"), strict=True):
        at = read.index(claim.sentence)
        assert read[at : at + 5] == [claim.sentence, verdict, claim.source, "Measured", claim.measurement]
    assert any("1 held, 1 did not hold, 2 undecided" in text for text in read)
    assert {"First.", "Second.", "note", "12,000", "0.0312", "About & so on"} <= set(read)


def test_what_comes_from_outside_is_only_ever_text():
    html = render_lab_page(RESULT, False, "")
    assert not re.search(
        r"<title>A <title>|<i>|<x>|<b>\W", html.replace("<b>Loss</b>", "").replace("<b>Measured</b>", "")
    )
    assert not re.search(r"""(?:src|href)=["'](?!data:,)""", html)


def test_a_quick_run_says_so():
    assert "Quick run" not in render_lab_page(RESULT, False, "")
    assert any(text.startswith("Quick run") for text in texts(render_lab_page(RESULT, True, "")))


def test_values_that_are_no_numbers_are_not_drawn():
    html = render_lab_page(RESULT, False, "")
    (points,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    assert json.loads(points) == [[[1, 4], [3, 2]]]  # the curve that has no number at all is left out
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S).lower()


def test_dots_stand_where_their_values_are():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [1.0, 3.0], "b": [2.0, 2.0]}), 800)
    lo, hi, start, end, log = map(float, re.search(r'data-x="([^"]*)"', svg)[1].split())
    assert log == 0
    assert lo == 0  # zero is near
    seeds = [float(x) for x in re.findall(r'class="seed" cx="([\d.]+)"', svg)]
    means = [float(x) for x in re.findall(r'class="mean" cx="([\d.]+)"', svg)]
    wanted = [start + (v - lo) / (hi - lo) * (end - start) for v in (1, 3, 2, 2, 2, 2)]
    assert [*seeds, *means] == pytest.approx(wanted, abs=0.1)


def test_the_band_is_cut_where_the_picture_ends():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [1.0, 3.0]}), 800)  # the interval of two values reaches far
    start, end = map(float, re.search(r'data-x="\S+ \S+ (\S+) (\S+)', svg).groups())
    x1, x2 = map(float, re.search(r'class="reach" x1="([\d.]+)" x2="([\d.]+)"', svg).groups())
    assert start - 0.1 <= x1 < x2 <= end + 0.1


def test_a_lost_training_is_named():
    svg = render_dot_plot(RESULT.figures[1], 800)
    assert "(1 of 2 lost)" in svg
    assert "diverged" in svg
    assert svg.count('class="mean"') == 2


def test_values_far_apart_are_drawn_on_a_logarithmic_scale():
    svg = render_dot_plot(DotPlot("t", "x", {"a": [0.001], "b": [1.0]}), 800)
    assert re.search(r'data-x="[^"]* 1"', svg)


def test_json_has_everything_and_no_nan():
    found = json.loads(json.dumps(RESULT.to_json(), allow_nan=False))
    assert [claim["is_supported"] for claim in found["claims"]] == [True, False, None, None]
    assert [claim["verdict"] for claim in found["claims"]] == [
        "held",
        "did not hold",
        "undecided",
        "undecided",
    ]
    assert [figure["kind"] for figure in found["figures"]] == ["plot", "dots", "table"]
    assert found["figures"][0]["curves"][0] == {"name": "<x>", "points": [[1, 4.0], [2, None], [3, 2.0]]}
    assert found["figures"][1]["rows"]["two <b>"] == [None, 3.0]
    assert found["figures"][2]["rows"] == [["<i>", 12000], ["b", 0.03125]]
