import json
import math

import pytest
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.viz.run_record import read_metrics


def test_old_and_non_finite_metrics_are_read(runs_dir, tmp_path):
    rows = read_metrics(runs_dir / "slow/metrics.jsonl")
    for row in rows:
        row.pop("nll", None)
    rows[0]["ppl"] = rows[0]["loss"] = None  # not finite
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(tmp_path)]) == 0
    train_curve = Page((tmp_path / "report.html").read_text()).data()[0][0]
    expected = [math.log(row["ppl"]) for row in rows[1:] if row["split"] == "train"]
    assert [y for _, y in train_curve] == pytest.approx(expected, rel=1e-3)
    assert read_metrics(tmp_path / "none") == []
