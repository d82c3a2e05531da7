import json
import math

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two trainings that differ in their learning rate."""
    place = tmp_path_factory.mktemp("place")
    write_texts(place)
    for name, lr in (("slow", 1e-3), ("quick", 1e-2)):
        run_training(task_recipe(place, "translation", place / "runs" / name, lr=lr), report=Notes())
    return place / "runs"


def test_rows_without_nll_and_broken_values_are_read(runs, tmp_path):
    """As runs of before ``nll`` was logged wrote them."""
    old = tmp_path / "old"
    old.mkdir()
    rows = read_metrics(runs / "slow/metrics.jsonl")
    for row in rows:
        row.pop("nll", None)
    rows[0]["ppl"] = rows[0]["loss"] = None  # not finite
    (old / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(old)]) == 0
    train = Page((old / "report.html").read_text()).data()[0][0]
    kept = [row for row in rows[1:] if row["split"] == "train"]
    assert [y for _, y in train] == pytest.approx([math.log(row["ppl"]) for row in kept], rel=1e-3)


def test_no_file_has_no_rows(tmp_path):
    assert read_metrics(tmp_path / "none") == []
