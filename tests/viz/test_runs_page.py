import math
from pathlib import Path

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import RunRecord, read_facts, read_metrics
from polyhead.viz.runs_page import disambiguate_names


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two trainings that differ in their learning rate."""
    place = tmp_path_factory.mktemp("place")
    write_texts(place)
    for name, lr in (("slow", 1e-3), ("quick", 1e-2)):
        run_training(task_recipe(place, "translation", place / "runs" / name, lr=lr), report=Notes())
    return place / "runs"


def test_several_runs_share_a_chart_and_show_what_differs(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs / "slow"), str(runs / "quick")]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    page = Page(Path("report.html").read_text())
    valid, train = page.data()[:2]
    for drawn, split in ((valid, "valid"), (train, "train")):
        assert len(drawn) == 2
        for curve, name in zip(drawn, ("slow", "quick"), strict=True):
            rows = [row for row in read_metrics(runs / name / "metrics.jsonl") if row["split"] == split]
            nats = [math.log(row["ppl"]) for row in rows]
            assert [x for x, _ in curve] == [row["step"] for row in rows]
            assert [y for _, y in curve] == pytest.approx(nats, rel=1e-3)
    words = [text for tag, text in page.texts if tag in ("th", "td")]
    at = words.index("train.lr")
    assert words[at : at + 3] == ["train.lr", "0.001", "0.01"]
    assert "train.steps" not in words and "model.d_model" not in words  # equal in both
    facts = [read_facts(runs / name / "README.md") for name in ("slow", "quick")]
    at = words.index("valid loss")
    assert words[at + 1 : at + 3] == [f["valid loss"] for f in facts]


def test_runs_of_one_name_are_told_apart_by_their_paths():
    records = [RunRecord(Path(place), "x", [], {}, {}, {}, False) for place in ("a/x", "b/x")]
    assert [record.name for record in disambiguate_names(records)] == ["a/x", "b/x"]
