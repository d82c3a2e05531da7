from dataclasses import replace

import pytest
from tests.compare.result_rows import ROWS, make_row, make_scored_rows

from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import format_duration, format_memory, format_table
from polyhead.core.i18n import use_language
from polyhead.viz.plot import format_short

WIDTH = 120  # columns of a terminal


def test_columns_align_in_chinese(plan):
    with use_language("zh"):
        text = format_table(make_scored_rows(base=10.0, other=20.0), plan)
    lines = text.split("\n\n")[0].splitlines()[1:]
    assert "未学会" in lines[0] and "基线: 照抄源文" in lines[2]
    # a Chinese character is as wide as two others
    scores = zip(lines, ("10.00", "20.00", "30.00"), strict=True)
    assert len({len(line[: line.index(score)].encode("gbk")) for line, score in scores}) == 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_table_fits_terminal_and_is_aligned(plan, seeds):
    text = format_table(ROWS, replace(plan, seeds=tuple(range(seeds))))
    assert all(len(line) <= WIDTH for line in text.splitlines())
    quality, cost = text.split("\n\n")[:2]
    for part in (quality, cost):
        lines = part.splitlines()
        assert [line[:2] for line in lines] == ["  ", "  ", "->", "  "]
        assert len({len(line) for line in lines}) == 1 or part == quality
    assert ("±" in quality) == (seeds > 1)
    assert "a" * 10 in quality and "…" in quality
    assert "1.500" in quality.splitlines()[1] and "0.030*" in quality.splitlines()[1]
    assert "4.35M" in cost.splitlines()[1]
    assert text.endswith("<b>bad</b>: cannot be built: no <such> thing")


def test_long_names_are_shortened_but_distinct(plan):
    modules = "target_modules: [attn, ffn], modules_to_save: [classifier, pooler]"
    names = [f"lora={{r: {n}, {modules}, alpha: {n}}}" for n in (4, 16)]
    rows = [*(make_row(name, 1.5) for name in names), make_row("base", 1.6)]
    lines = format_table(rows, replace(plan, seeds=(1, 2, 3))).split("\n\n")[0].splitlines()
    first, second, base = (line[3:].split("  ")[0] for line in lines[1:])
    assert first != second
    assert first.startswith("lora={r: 4") and second.endswith("alpha: 16}")
    assert base == "base"
    assert all(len(line) <= WIDTH for line in lines)


def test_losses_of_different_tokenizers_are_not_compared(plan, tmp_path):
    rows = [make_row("base", 1.6), make_row("kind=char", 0.5, tokenizer="char")]
    page = write_compare_page(tmp_path / "x.html", rows, plan).read_text()
    assert "lowest loss" not in page and "highest BLEU" in page
    assert 'data-choice="validation loss"' not in page
    assert "loss: not comparable between different tokenizers." in format_table(rows, plan)
    page = write_compare_page(tmp_path / "x.html", [make_row("base", 1.6), make_row("y", 0.5)], plan)
    assert "lowest loss" in page.read_text()


def test_numbers_are_shortened(plan):
    large = {"bleu": 18_815_827.68, "bleu_interval": [18_482_415.6, 19_180_734.6]}
    text = format_table([make_row("base", 1.6, **large)], plan)
    assert "  18.8M  18.5M-19.2M  " in text.splitlines()[1]
    values = [None, 0, 7, 999, 1000, 999_600, 1234567, 4e12, 0.5]
    expected = ["-", "0", "7.00", "999", "1.00k", "1.00M", "1.23M", "4.00T", "0.50"]
    assert [format_short(value) for value in values] == expected
    assert [format_duration(v) for v in (None, 5, 754, 3723)] == ["-", "0:05", "12:34", "1:02:03"]
    assert [format_memory(v) for v in (None, 2**29, 3 * 2**30)] == ["-", "512 MiB", "3.00 GiB"]
