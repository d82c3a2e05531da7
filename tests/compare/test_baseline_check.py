"""Designs whose score is not better than their baseline: marked, and without a verdict among them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.compare.result_rows import (
    plan,  # noqa: F401
    row,
)

from polyhead.cli import main
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import format_table

OUT = Path("runs/compare-toy")


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
    assert (
        "Not learned: base, norm=rmsnorm, norm_first=true. Their score (BLEU) is not better than" in told.out
    )
    assert f"(baseline {baseline}: " in told.err
    page = (OUT / "compare.html").read_text()
    assert "no design has learned yet" in page and "Quality against cost" not in page
    assert 'class="better"' not in page and 'class="worse"' not in page and "highest BLEU" not in page
    with (OUT / "compare.csv").open() as file:
        assert {one["learned"] for one in csv.DictReader(file)} == {"False"}


def test_results_without_baselines_are_shown_as_before(tmp_path: Path, plan: ComparisonPlan) -> None:  # noqa: F811
    rows = [row("base", 3.0), row("other", 4.0)]
    assert "learned" not in format_table(rows, plan) and "baseline:" not in format_table(rows, plan)
    assert "not learned" not in shown(tmp_path, rows, plan)
