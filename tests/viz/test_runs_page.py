import math
from pathlib import Path

import pytest
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.viz.run_page import disambiguate_names
from polyhead.viz.run_record import RunRecord, read_facts, read_metrics


def test_runs_share_charts_and_list_differences(runs_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    directories = [runs_dir / "slow", runs_dir / "quick"]
    assert main(["report", *map(str, directories)]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    page = Page(Path("report.html").read_text())
    for curves, split in zip(page.data()[:2], ("valid", "train"), strict=True):
        for curve, directory in zip(curves, directories, strict=True):
            rows = [row for row in read_metrics(directory / "metrics.jsonl") if row["split"] == split]
            assert [x for x, _ in curve] == [row["step"] for row in rows]
            losses = [math.log(row["ppl"]) for row in rows]
            assert [y for _, y in curve] == pytest.approx(losses, rel=1e-3)
    words = [text for tag, text in page.texts if tag in ("th", "td")]
    at = words.index("train.lr")
    assert words[at : at + 3] == ["train.lr", "0.001", "0.01"]
    assert "train.steps" not in words and "model.d_model" not in words  # equal in both
    at = words.index("valid loss")
    facts = [read_facts(directory / "README.md") for directory in directories]
    assert words[at + 1 : at + 3] == [fact["valid loss"] for fact in facts]


def test_runs_with_equal_names_have_paths():
    records = [RunRecord(Path(path), "x", [], {}, {}, {}, False) for path in ("a/x", "b/x")]
    assert [record.name for record in disambiguate_names(records)] == ["a/x", "b/x"]
