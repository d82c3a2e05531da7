import csv
import re
from pathlib import Path

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.compare.compare_helpers import compare
from tests.compare.result_rows import make_row

from polyhead.compare.report.page import write_compare_page
from polyhead.compare.report.text_table import format_table

OUT = Path("runs/compare-toy")


@pytest.mark.usefixtures("run_trials")
def test_designs_below_baseline_are_marked_without_p_values(capsys):
    names = ["base", "norm=rmsnorm", "norm_first=true"]
    rows = compare("toy", "--vary", names[1], "--vary", names[2])
    out, err = capsys.readouterr()
    assert list(rows) == names  # as planned, not by score
    files = ("test.de", "test.en", "train.en")
    sources, references, targets = (Path(name).read_text().splitlines() for name in files)
    most_frequent = max(targets, key=targets.count)  # the first of the most frequent ones
    guesses = [sources, [most_frequent] * len(sources)]
    for row in rows.values():
        assert row["learned"] is False
        assert {row[f"{name}_p"] for name in ("loss", "bleu", "chrf")} == {None}
        for name, score in (("bleu", corpus_bleu), ("chrf", corpus_chrf)):
            best = max(score(guess, [references]).score for guess in guesses)
            assert row["baselines"][name]["value"] == pytest.approx(best)
        assert row["bleu"] <= row["baselines"]["bleu"]["value"]
    baseline = f"{rows['base']['baselines']['bleu']['value']:.2f}"
    assert re.search(rf"^   baseline: .*  {re.escape(baseline)} ", out, re.MULTILINE)
    lines = [line for line in out.splitlines() if "not learned" in line]
    assert [line.split()[0] for line in lines] == ["->", *names[1:]]
    assert "Not learned: base, norm=rmsnorm, norm_first=true. Their score (BLEU) is not better than" in out
    assert "train them longer (--budget)." in " ".join(out.split())
    assert f"(baseline {baseline}: " in err
    page = (OUT / "compare.html").read_text()
    assert "no design has learned yet" in page
    for text in ("Quality against cost", 'class="better"', 'class="worse"', "highest BLEU"):
        assert text not in page
    lines = csv.DictReader((OUT / "compare.csv").read_text().splitlines())
    assert {line["learned"] for line in lines} == {"False"}


def test_results_without_baselines_have_no_marks(tmp_path, plan):
    rows = [make_row("base", 3.0), make_row("other", 4.0)]
    table = format_table(rows, plan)
    assert "learned" not in table and "baseline:" not in table
    assert "not learned" not in write_compare_page(tmp_path / "page.html", rows, plan).read_text()
