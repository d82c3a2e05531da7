"""The table in the terminal, and the page."""

from __future__ import annotations

import itertools
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from polyhead.compare.budget import Budget
from polyhead.compare.plan import ComparisonPlan, Design, make_plan
from polyhead.compare.report.curves import average_curves, flops_per_step, trim_start
from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.pareto import COST_AXES, ParetoPoint, find_frontier, render_pareto_chart
from polyhead.compare.report.text_table import (
    _LINE_WIDTH,
    _fit_columns,
    format_duration,
    format_memory,
    format_short,
    format_table,
)
from polyhead.compare.tasks.base import get_compared_task
from polyhead.viz.svg_charts import Curve


def row(name: str, loss: float, **changes: Any) -> dict[str, Any]:
    """A row as results.py makes it."""
    found: dict[str, Any] = {
        "name": name, "base": name == "base", "status": "done", "message": "", "note": "", "changes": [f"model.{name}"],
        "seeds": 1, "loss": loss, "ppl": 2.7**loss, "bleu": 40 - 5 * loss, "chrf": 60 - 5 * loss, "parameters": 2.9e6 * loss,
        "flops_per_token": 7e6, "times_forward": 3, "steps": 3000.0, "seconds": 600.0, "tokens": 3e6, "train_tokens_per_s": 5000.0,
        "decode_tokens_per_s": 2000.0 * loss, "memory": 8e8, "cache_per_token": 4096.0, "cache_constant": 0.0, "dead": 0.01,
        "skipped": 0, "fewer": 0, "tokenizer": "bpe", "split": "test", "signatures": {"bleu": "tok:13a"}, "recipe": "task: <translation>\n",
        "curves": [[[200, 40.0, loss + 4], [1000, 200.0, loss + 0.5], [3000, 600.0, loss]]],
    }  # fmt: skip
    for measure in ("loss", "bleu", "chrf"):
        found |= {f"{measure}_spread": 0.01, f"{measure}_p": None if name == "base" else 0.03}
        found |= {f"{measure}_interval": [found[measure] - 0.5, found[measure] + 0.5]}
    return found | changes


def refused(name: str) -> dict[str, Any]:
    nothing = dict.fromkeys(row("x", 1.0))
    return nothing | {
        "name": name, "status": "refused", "message": "no <such> thing", "skipped": 0, "curves": [], "changes": [], "note": "",
    }  # fmt: skip


@pytest.fixture
def plan(place: Path) -> ComparisonPlan:
    return make_plan(
        place / "toy.yaml",
        (),
        (),
        (),
        full_grid=False,
        budget=Budget("time", 600),
        seeds=1,
        match=False,
        out=place / "out",
    )


ROWS = [row("norm=rmsnorm", 1.5), row("base", 1.6), row("a" * 100, 2.5), refused("<b>bad</b>")]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_table_fits_120_columns_and_is_aligned(plan: ComparisonPlan, seeds: int) -> None:
    many = ComparisonPlan(plan.designs, tuple(range(seeds)), plan.budget, plan.match, plan.out)
    text = format_table(ROWS, many)
    quality, cost = text.split("\n\n")[:2]
    for part in (quality, cost):
        lines = part.splitlines()
        assert len(lines) == 4
        assert max(map(len, lines)) <= _LINE_WIDTH
        assert [line[:2] for line in lines] == ["  ", "  ", "->", "  "]
        assert len({len(line) for line in lines}) == 1 or part == quality
    assert ("±" in quality) == (seeds > 1)
    assert "a" * 10 in quality
    assert "…" in quality
    assert "1.500" in quality.splitlines()[1]
    assert "0.030*" in quality.splitlines()[1]
    assert "4.35M" in cost.splitlines()[1]
    assert text.endswith("<b>bad</b>: cannot be built: no <such> thing")
    assert all(len(line) <= _LINE_WIDTH for line in text.splitlines())


def test_the_last_intervals_make_room_for_names() -> None:
    given = [
        ("loss", "1.5"),
        ("95 %", "f" * 40),
        ("BLEU", "20"),
        ("95 %", "s" * 40),
        ("chrF", "40"),
        ("95 %", "t" * 40),
    ]
    columns = [(title, lambda _, value=value: value) for title, value in given]
    kept = _fit_columns([{"name": "n" * 40}], columns)
    assert [show({}) for _, show in kept] == ["1.5", "f" * 40, "20", "40"]
    assert _fit_columns([{"name": "n"}], columns[:4]) == columns[:4]


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0, "0"), (7, "7.00"), (999, "999"), (1000, "1.00k"), (999_600, "1.00M"), (1234567, "1.23M"), (4e12, "4.00T"), (0.5, "0.50")],
)  # fmt: skip
def test_large_numbers_are_three_figures(value: float | None, said: str) -> None:
    assert format_short(value) == said


def test_a_perplexity_of_millions_does_not_break_the_table(plan: ComparisonPlan) -> None:
    wide = {"bleu": 18_815_827.68, "bleu_interval": [18_482_415.6, 19_180_734.6]}
    assert "  18.8M  18.5M-19.2M  " in format_table([row("base", 1.6, **wide)], plan).splitlines()[1]


def test_names_differ_at_their_ends_and_stay_apart(plan: ComparisonPlan) -> None:
    many = ComparisonPlan(plan.designs, (1, 2, 3), plan.budget, plan.match, plan.out)
    names = [
        f"adapt={{rank: {n}, parts: [attn, ffn], learn: [classifier, pooler], alpha: {n}}}" for n in (4, 16)
    ]
    quality = format_table([*(row(name, 1.5) for name in names), row("base", 1.6)], many).split("\n\n")[0]
    first, second, base = (line[3:].split("  ")[0] for line in quality.splitlines()[1:])
    assert first != second
    assert first.startswith("adapt={rank: 4") and second.endswith("alpha: 16}")
    assert base == "base"
    assert all(len(line) <= _LINE_WIDTH for line in quality.splitlines())


def test_losses_of_other_tokens_are_not_called_lowest(plan: ComparisonPlan, tmp_path: Path) -> None:
    rows = [row("base", 1.6), row("kind=char", 0.5, tokenizer="char")]
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert "lowest loss" not in page
    assert "highest BLEU" in page
    assert "loss: not to be compared where tokens differ." in format_table(rows, plan)
    assert 'data-choice="validation loss"' not in page
    page = write_compare_page(tmp_path / "x.html", [row("base", 1.6), row("y", 0.5)], plan).read_text()
    assert "lowest loss" in page


def test_what_was_measured_on_less_is_never_the_best(plan: ComparisonPlan, tmp_path: Path) -> None:
    rows = [row("base", 1.6), row("easy", 0.5, fewer=3)]
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>1.600</dd><dt>base<", page)
    assert 'class="chart pareto"' not in page  # of one design there is nothing to draw
    rows = [row("base", 1.6, fewer=1), row("easy", 0.5, fewer=3)]  # of each measure the other has fewer
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert re.search(r"lowest loss</dt><dd>0.500</dd><dt>easy<", page)


def test_times_and_memory_are_said_as_people_do() -> None:
    assert [format_duration(v) for v in (None, 5, 754, 3723)] == ["-", "0:05", "12:34", "1:02:03"]
    assert [format_memory(v) for v in (None, 2**29, 3 * 2**30)] == ["-", "512 MiB", "3.00 GiB"]


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


def test_the_frontier_is_what_nobody_beats_in_both() -> None:
    random.seed(2)
    dots = [ParetoPoint(i, str(i), random.random(), random.random(), (0, 1)) for i in range(60)]
    for less in (True, False):
        sign = 1 if less else -1
        unbeaten = [
            d for d in dots if not any(o.x <= d.x and sign * o.y <= sign * d.y and o is not d for o in dots)
        ]
        assert find_frontier(dots, less) == sorted(unbeaten, key=lambda d: d.x)


def test_costs_that_are_almost_equal_have_different_ticks() -> None:
    dots = [ParetoPoint(i, str(i), x, 1.0 + i, (1.0, 3.0)) for i, x in enumerate((1_581_000.0, 1_582_000.0))]
    svg = render_pareto_chart(dots, get_compared_task("translation").measures[0], COST_AXES[0], 940, 400)
    labels = re.findall(r'class="tick middle"[^>]*>([^<]+)<', svg)
    assert len(labels) > 3
    assert len(set(labels)) == len(labels)


def test_seeds_are_averaged_in_the_curve() -> None:
    two = row("x", 1.0, curves=[[[10, 60.0, 3.0], [20, 120.0, 2.0]], [[10, 120.0, 5.0], [20, 240.0, None]]])
    assert average_curves(two, "steps") == [(10, 4.0), (20, 2.0)]
    assert average_curves(two, "time") == [(1.5, 4.0), (2.0, 2.0)]
    assert flops_per_step(two) == 3 * 7e6 * 1000
    assert flops_per_step({**two, "times_forward": 2}) == 2 * 7e6 * 1000


def test_the_first_fall_is_left_out_but_no_curve_is() -> None:
    curves = [Curve("a", [(1, 9.0), (2, 3.0), (3, 2.0)]), Curve("b", [(1, 9.0), (2, 8.0), (3, 4.0)])]
    assert [c.points for c in trim_start(curves)] == [[(2, 3.0), (3, 2.0)], [(3, 4.0)]]


def test_a_row_knows_what_it_is() -> None:
    assert Design("base", (), None).is_base
    assert not Design("x", ("model.d_ff=8",), None).is_base
