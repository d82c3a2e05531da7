import itertools
import re

import pytest
from tests.compare.result_rows import ROWS, make_refused_row, make_row
from tests.viz.html_pages import Page

from polyhead.compare.report.page import write_compare_page


@pytest.fixture
def write_page(plan, tmp_path):
    return lambda rows: write_compare_page(tmp_path / "page.html", rows, plan).read_text()


def test_score_on_fewer_texts_is_never_best(write_page):
    html = write_page([make_row("base", 1.6), make_row("easy", 0.5, fewer=3)])
    assert re.search(r"lowest loss</dt><dd>1.600</dd><dt>base<", html)
    assert 'class="chart pareto"' not in html  # one design makes no chart
    html = write_page([make_row("base", 1.6, fewer=1), make_row("easy", 0.5, fewer=3)])  # both on fewer
    assert re.search(r"lowest loss</dt><dd>0.500</dd><dt>easy<", html)
    # a page without results
    html = write_page([make_refused_row("x"), make_refused_row("y") | {"status": "waiting", "message": ""}])
    assert "1 designs have not been run yet." in html
    assert "<table" not in html


def test_page_is_self_contained_with_visible_charts(write_page):
    html = write_page(ROWS)
    page = Page(html)
    assert [a["href"] for a in page.all("link")] == ["data:,"]
    assert not any("src" in attributes for _, attributes in page.elements)
    assert sum("row" in (a.get("class") or "") for a in page.all("tr")) == 2 * 3
    assert "<b>bad</b>" not in html and "&lt;b&gt;bad&lt;/b&gt;" in html
    assert "task: &lt;translation&gt;" in html
    charts = {a["data-choice"]: "hidden" in a for _, a in page.elements if "data-choice" in a}
    assert [name for name, hidden in charts.items() if not hidden] == ["steps", "validation loss|parameters"]
    steps, minutes, flops = page.data()[:3]
    assert [curve[-1] for curve in steps] == [[3000, loss] for loss in (1.5, 1.6, 2.5)]
    assert [curve[-1][0] for curve in minutes] == [10] * 3
    assert [curve[-1][0] for curve in flops] == pytest.approx([3 * 7e6 * 3e6 / 1e12] * 3)
    # every combination of buttons has its chart
    values = re.findall(r'data-value="([^"]+)"', html)
    assert values[:3] == ["steps", "time", "FLOPs"]
    pairs = itertools.product(values[3:6], values[6:])
    assert set(charts) == {*values[:3], *map("|".join, pairs)} and len(charts) == 3 + 3 * 4
