"""Tests of compare/report/html_tables.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.compare.result_rows import plan as plan
from tests.compare.result_rows import row

from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.page import write_compare_page

COPIED = {"value": 30.0, "guess": "copied source", "detail": ""}


def with_scores(**bleu: float) -> list[dict[str, Any]]:
    """Rows of these BLEU scores beside a copied source of 30."""
    return [
        row(name, 3.0 + i, bleu=value, learned=value > 30, baselines={"bleu": COPIED})
        for i, (name, value) in enumerate(bleu.items())
    ]


def shown(tmp_path: Path, rows: list[dict[str, Any]], plan: ComparisonPlan) -> str:
    return write_compare_page(tmp_path / "page.html", rows, plan).read_text()


def test_the_best_is_one_that_has_learned(tmp_path: Path, plan: ComparisonPlan) -> None:
    rows = with_scores(good=40.0, base=35.0, bad=20.0)
    rows[2]["loss"] = 0.1  # of all the lowest
    html = shown(tmp_path, rows, plan)
    assert re.search(r"lowest loss</dt><dd>[\d.]+</dd><dt>good<", html)
    assert html.count("not learned</span>") == 2  # once in either table
    assert "Not learned: bad. Their score (BLEU)" in html
    chart = html[html.index("Quality against cost") :]
    assert "<title>good: " in chart and "<title>bad: " not in chart
    # the page's script finds the designs by the number of each of these rows
    assert all(re.search(r"\bc\d+\b", classes) for classes in re.findall(r'<tr class="(row [^"]*)"', html))
    assert "baseline: copied source" in html and "<td>30.00</td>" in html
