import itertools
import random
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
from tests.compare.result_rows import ROWS, make_refused_row, make_row, make_scored_rows
from tests.viz.html_pages import Page

from polyhead.compare.report.page import (
    COST_AXES,
    average_curves,
    flops_per_step,
    make_pareto_chart,
    trim_start,
    write_compare_page,
)
from polyhead.compare.tasks.base import get_compared_task
from polyhead.viz.plot import Curve
from polyhead.viz.plots import ParetoPoint, find_frontier, pareto_svg


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


def test_designs_lead_to_their_reports(plan, tmp_path):
    plan = replace(plan, out=tmp_path)
    row = ROWS[0] | {"name": plan.designs[0].name}
    assert not Page(write_compare_page(tmp_path / "page.html", [row], plan).read_text()).all("a")
    report = plan.trial_dir(plan.designs[0], plan.seeds[0]) / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("")
    (link,) = Page(write_compare_page(tmp_path / "page.html", [row], plan).read_text()).all("a")
    assert (tmp_path / unquote(link["href"])).samefile(report)


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


def test_best_design_is_one_that_has_learned(tmp_path, plan):
    rows = make_scored_rows(good=40.0, base=35.0, bad=20.0)
    rows[2]["loss"] = 0.1  # the lowest of all
    html = write_compare_page(tmp_path / "page.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>[\d.]+</dd><dt>good<", html)
    assert html.count("not learned</span>") == 2  # once in either table
    assert "Not learned: bad. Their score (BLEU)" in html
    assert "train them longer (budget)." in html  # in Python it is an argument
    chart = html[html.index("Quality against cost") :]
    assert "<title>good: " in chart and "<title>bad: " not in chart
    # the page's script finds the designs by the number of each of these rows
    assert all(re.search(r"\bc\d+\b", classes) for classes in re.findall(r'<tr class="(row [^"]*)"', html))
    assert "baseline: copied source" in html and "<td>30.00</td>" in html


def test_curve_is_mean_of_seeds():
    curves = [[[10, 60.0, 3.0], [20, 120.0, 2.0]], [[10, 120.0, 5.0], [20, 240.0, None]]]
    row = make_row("x", 1.0, curves=curves)
    assert average_curves(row, "steps") == [(10, 4.0), (20, 2.0)]
    assert average_curves(row, "time") == [(1.5, 4.0), (2.0, 2.0)]
    assert flops_per_step(row) == 3 * 7e6 * 1000
    assert flops_per_step({**row, "times_forward": 2}) == 2 * 7e6 * 1000
    # the initial drop is trimmed
    curves = [Curve("a", [(1, 9.0), (2, 3.0), (3, 2.0)]), Curve("b", [(1, 9.0), (2, 8.0), (3, 4.0)])]
    assert [c.points for c in trim_start(curves)] == [[(2, 3.0), (3, 2.0)], [(3, 4.0)]]


def test_frontier_is_undominated_points():
    random.seed(2)
    points = [ParetoPoint(i, str(i), random.random(), random.random(), (0, 1)) for i in range(60)]
    for less_is_better in (True, False):
        sign = 1 if less_is_better else -1
        expected = [
            p
            for p in points
            if not any(q.x <= p.x and sign * q.y <= sign * p.y and q is not p for q in points)
        ]
        assert find_frontier(points, less_is_better) == sorted(expected, key=lambda p: p.x)
    # ticks of nearly equal costs are distinct
    rows = [make_row(str(n), 1.0 + i, parameters=n) for i, n in enumerate((1_581_000.0, 1_582_000.0))]
    measure = get_compared_task("translation").measures[0]
    svg = pareto_svg(make_pareto_chart(rows, measure, COST_AXES[0]), 940, 400)
    labels = re.findall(r'class="tick middle"[^>]*>([^<]+)<', svg)
    assert len(set(labels)) == len(labels) > 3
