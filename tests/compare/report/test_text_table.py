"""Tests of compare/report/text_table.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.compare.result_rows import ROWS, row
from tests.compare.result_rows import plan as plan

from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import (
    _LINE_WIDTH,
    _fit_columns,
    format_duration,
    format_memory,
    format_table,
)
from polyhead.core.i18n import set_language
from polyhead.viz.plot import format_short

COPIED = {"value": 30.0, "guess": "copied source", "detail": ""}


def with_scores(**bleu: float) -> list[dict[str, Any]]:
    """Rows of these BLEU scores beside a copied source of 30."""
    return [
        row(name, 3.0 + i, bleu=value, learned=value > 30, baselines={"bleu": COPIED})
        for i, (name, value) in enumerate(bleu.items())
    ]


def test_columns_stand_below_each_other_in_chinese_too(plan: ComparisonPlan) -> None:
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
    [(None, "-"), (0, "0"), (7, "7.00"), (999, "999"), (1000, "1.00k"), (999_600, "1.00M"), (1234567,
        "1.23M"), (4e12, "4.00T"), (0.5, "0.50")],
)  # fmt: skip
def test_large_numbers_are_three_figures(value: float | None, said: str) -> None:
    assert format_short(value) == said


def test_a_perplexity_of_millions_does_not_break_the_table(plan: ComparisonPlan) -> None:
    wide = {"bleu": 18_815_827.68, "bleu_interval": [18_482_415.6, 19_180_734.6]}
    assert "  18.8M  18.5M-19.2M  " in format_table([row("base", 1.6, **wide)], plan).splitlines()[1]


def test_names_differ_at_their_ends_and_stay_apart(plan: ComparisonPlan) -> None:
    many = ComparisonPlan(plan.designs, (1, 2, 3), plan.budget, plan.match, plan.out)
    names = [
        f"lora={{r: {n}, target_modules: [attn, ffn], modules_to_save: [classifier, pooler], alpha: {n}}}"
        for n in (4, 16)
    ]
    quality = format_table([*(row(name, 1.5) for name in names), row("base", 1.6)], many).split("\n\n")[0]
    first, second, base = (line[3:].split("  ")[0] for line in quality.splitlines()[1:])
    assert first != second
    assert first.startswith("lora={r: 4") and second.endswith("alpha: 16}")
    assert base == "base"
    assert all(len(line) <= _LINE_WIDTH for line in quality.splitlines())


def test_losses_of_other_tokens_are_not_called_lowest(plan: ComparisonPlan, tmp_path: Path) -> None:
    rows = [row("base", 1.6), row("kind=char", 0.5, tokenizer="char")]
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert "lowest loss" not in page
    assert "highest BLEU" in page
    assert "loss: not comparable between different tokenizers." in format_table(rows, plan)
    assert 'data-choice="validation loss"' not in page
    page = write_compare_page(tmp_path / "x.html", [row("base", 1.6), row("y", 0.5)], plan).read_text()
    assert "lowest loss" in page


def test_times_and_memory_are_said_as_people_do() -> None:
    assert [format_duration(v) for v in (None, 5, 754, 3723)] == ["-", "0:05", "12:34", "1:02:03"]
    assert [format_memory(v) for v in (None, 2**29, 3 * 2**30)] == ["-", "512 MiB", "3.00 GiB"]
