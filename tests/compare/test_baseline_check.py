"""Designs whose score is not better than their baseline: marked, and without a verdict among them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.compare.test_pages import plan, row  # noqa: F401

from polyhead.cli import main
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import format_table
from polyhead.compare.results import withhold_verdicts
from polyhead.core.i18n import set_language

OUT = Path("runs/compare-toy")
COPIED = {"value": 30.0, "guess": "copied source", "detail": ""}


def with_scores(**bleu: float) -> list[dict[str, Any]]:
    """Rows of these BLEU scores beside a copied source of 30."""
    return [
        row(name, 3.0 + i, bleu=value, learned=value > 30, baselines={"bleu": COPIED})
        for i, (name, value) in enumerate(bleu.items())
    ]


def shown(tmp_path: Path, rows: list[dict[str, Any]], plan: ComparisonPlan) -> str:  # noqa: F811
    return write_compare_page(tmp_path / "page.html", rows, plan).read_text()


@pytest.mark.usefixtures("place", "in_process")
def test_designs_that_have_not_learned_are_marked_and_get_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "compare",
                "toy.yaml",
                "--vary",
                "norm=rmsnorm",
                "--vary",
                "norm_first=true",
                "--budget",
                "1steps",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    rows = json.loads((OUT / "compare.json").read_text())["rows"]
    assert [one["name"] for one in rows] == [
        "base",
        "norm=rmsnorm",
        "norm_first=true",
    ]  # as planned, not by score
    sources, references, targets = (
        Path(name).read_text().splitlines() for name in ("test.de", "test.en", "train.en")
    )
    frequent = max(targets, key=targets.count)  # the first of the most frequent ones
    for one in rows:
        assert one["learned"] is False
        assert {one[f"{name}_p"] for name in ("loss", "bleu", "chrf")} == {None}
        guesses = [sources, [frequent] * len(sources)]
        assert one["baselines"]["bleu"]["value"] == pytest.approx(
            max(corpus_bleu(guess, [references]).score for guess in guesses)
        )
        assert one["baselines"]["chrf"]["value"] == pytest.approx(
            max(corpus_chrf(guess, [references]).score for guess in guesses)
        )
        assert one["bleu"] <= one["baselines"]["bleu"]["value"]
    baseline = f"{rows[0]['baselines']['bleu']['value']:.2f}"
    assert re.search(rf"^   baseline: .*  {re.escape(baseline)} ", told.out, re.MULTILINE)
    lines = [line for line in told.out.splitlines() if "not learned" in line]
    assert [line.split()[0] for line in lines] == ["->", "norm=rmsnorm", "norm_first=true"]
    assert "Not learned: base, norm=rmsnorm, norm_first=true. The score (BLEU) is not better than" in told.out
    assert f"(baseline {baseline}: " in told.err
    page = (OUT / "compare.html").read_text()
    assert "no design has learned yet" in page and "Quality against cost" not in page
    assert 'class="better"' not in page and 'class="worse"' not in page and "highest BLEU" not in page
    with (OUT / "compare.csv").open() as file:
        assert {one["learned"] for one in csv.DictReader(file)} == {"False"}


def test_only_two_that_have_not_learned_are_without_a_verdict(plan: ComparisonPlan) -> None:  # noqa: F811
    rows = with_scores(base=10.0, good=40.0, bad=20.0)
    withhold_verdicts(rows, plan.task.measures)
    assert [one["bleu_p"] for one in rows] == [None, 0.03, None]
    rows = with_scores(base=40.0, good=50.0, bad=20.0)
    withhold_verdicts(rows, plan.task.measures)
    assert [one["bleu_p"] for one in rows] == [None, 0.03, 0.03]


def test_the_best_is_one_that_has_learned(tmp_path: Path, plan: ComparisonPlan) -> None:  # noqa: F811
    rows = with_scores(good=40.0, base=35.0, bad=20.0)
    rows[2]["loss"] = 0.1  # of all the lowest
    html = shown(tmp_path, rows, plan)
    assert re.search(r"lowest loss</dt><dd>[\d.]+</dd><dt>good<", html)
    assert html.count("not learned</span>") == 2  # once in either table
    assert "Not learned: bad. The score (BLEU)" in html
    chart = html[html.index("Quality against cost") :]
    assert "<title>good: " in chart and "<title>bad: " not in chart
    # the page's script finds the designs by the number of each of these rows
    assert all(re.search(r"\bc\d+\b", classes) for classes in re.findall(r'<tr class="(row [^"]*)"', html))
    assert "baseline: copied source" in html and "<td>30.00</td>" in html


def test_results_without_baselines_are_shown_as_before(tmp_path: Path, plan: ComparisonPlan) -> None:  # noqa: F811
    rows = [row("base", 3.0), row("other", 4.0)]
    assert "learned" not in format_table(rows, plan) and "baseline:" not in format_table(rows, plan)
    assert "not learned" not in shown(tmp_path, rows, plan)


def test_columns_stand_below_each_other_in_chinese_too(plan: ComparisonPlan) -> None:  # noqa: F811
    set_language("zh")
    try:
        text = format_table(with_scores(base=10.0, other=20.0), plan)
    finally:
        set_language(None)
    lines = text.split("\n\n")[0].splitlines()[1:]
    assert "未学会" in lines[0] and "基线: 照抄源文" in lines[2]
    # a Chinese character is as wide as two others
    scores = zip(lines, ("10.00", "20.00", "30.00"), strict=True)
    assert len({len(line[: line.index(score)].encode("gbk")) for line, score in scores}) == 1
