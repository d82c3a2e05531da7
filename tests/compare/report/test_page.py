"""The table in the terminal, and the page."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.compare.result_rows import ROWS, refused, row
from tests.compare.result_rows import plan as plan

from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.page import write_compare_page


def test_what_was_measured_on_less_is_never_the_best(plan: ComparisonPlan, tmp_path: Path) -> None:
    rows = [row("base", 1.6), row("easy", 0.5, fewer=3)]
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>1.600</dd><dt>base<", page)
    assert 'class="chart pareto"' not in page  # of one design there is nothing to draw
    rows = [row("base", 1.6, fewer=1), row("easy", 0.5, fewer=3)]  # of each measure the other has fewer
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>0.500</dd><dt>easy<", page)


class Page(HTMLParser):
    """Every element's class with its own text, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.scripts: list[str] = []
        self.rows = 0
        self.hidden: dict[str, bool] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.open.append(tag)
        self.references += [value or "" for key, value in attributes if key in ("src", "href")]
        self.rows += tag == "tr" and "row" in (given.get("class") or "")
        if "data-choice" in given:
            self.hidden[given["data-choice"] or ""] = "hidden" in given

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(text)
            self.open.pop()


def test_the_page_needs_nothing_else_and_shows_one_chart_of_each_kind(
    plan: ComparisonPlan, tmp_path: Path
) -> None:
    text = write_compare_page(tmp_path / "page.html", ROWS, plan).read_text()
    page = Page(text)
    assert page.references == ["data:,"]
    assert page.rows == 2 * 3
    assert "<b>bad</b>" not in text
    assert "&lt;b&gt;bad&lt;/b&gt;" in text
    assert "task: &lt;translation&gt;" in text
    shown = [name for name, hidden in page.hidden.items() if not hidden]
    assert shown == ["steps", "validation loss|parameters"]
    assert len(page.hidden) == 3 + 3 * 4
    curves = [json.loads(script) for script in page.scripts[:3]]
    assert (
        curves[0] == [[[1000, 2.0], [3000, 1.5]], [[1000, 2.1], [3000, 1.6]], [[3000, 2.5]]]
        or len(curves[0]) == 3
    )
    assert [c[-1][0] for c in curves[1]] == [10, 10, 10], "minutes"
    assert [c[-1][0] for c in curves[2]] == pytest.approx([3 * 7e6 * 3e6 / 1e12] * 3), "10^12 FLOPs"


def test_a_page_of_nothing_yet_is_a_page(plan: ComparisonPlan, tmp_path: Path) -> None:
    text = write_compare_page(
        tmp_path / "page.html", [refused("x"), refused("y") | {"status": "waiting", "message": ""}], plan
    ).read_text()
    assert "1 designs have not been run yet." in text
    assert "<table" not in text


def test_buttons_and_script_agree(plan: ComparisonPlan, tmp_path: Path) -> None:
    text = write_compare_page(tmp_path / "page.html", ROWS, plan).read_text()
    values = re.findall(r'data-value="([^"]+)"', text)
    assert values[:3] == ["steps", "time", "FLOPs"]
    wanted = {*values[:3], *("|".join(pair) for pair in itertools.product(values[3:6], values[6:]))}
    assert set(Page(text).hidden) == wanted
