import json
import math
import random
import shutil
import socket

import pytest
from tests.run.hostile_helpers import mutate
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.serve.http.run_pages import RunPages
from polyhead.viz.run_record import (
    StepTime,
    TimeForecast,
    compare_times,
    format_seconds,
    interpolate_seconds,
    predict_time,
    read_metrics,
)


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


def test_seconds_are_interpolated_and_formatted():
    ticks = [StepTime(4, 3.0), StepTime(8, 9.0)]
    assert [interpolate_seconds(ticks, step) for step in (0, 2, 4, 5, 8, 16)] == [0, 1.5, 3, 4.5, 9, 18]
    assert interpolate_seconds([], 5) == 0
    expected = ["0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 01 min", "25 h 00 min"]
    assert [format_seconds(s) for s in (0.4, 59, 60, 3599, 3661, 90000)] == expected


def test_prediction_excludes_warm_up():
    ticks = [StepTime(10, 30.0), StepTime(20, 40.0), StepTime(30, 50.0), StepTime(40, 99.0)]
    expected = TimeForecast(50.0 + 70 * 1.0, 30)  # a second per step, after the first ten
    assert predict_time(ticks, 100) == expected
    assert compare_times(ticks, 100, 180.0) == (expected, 0.5)
    for few in ([], [(50, 1.0)], [(10, 1.0), (29, 2.0)], [(10, 1.0), (60, 2.0)]):
        assert predict_time([StepTime(*tick) for tick in few], 100) is None


def damage_record(rng, directory):
    """Replace a value in a file of the record by one of another type."""
    name = rng.choice(["metrics.jsonl", "report.json", "run.lock", "README.md"])
    path = directory / name
    if name == "README.md":
        fact = rng.choice(["test BLEU", "valid accuracy", "valid BLEU baseline", "verdict"])
        path.write_text(f"| {fact} | {rng.choice(['', ' ', 'nan', '{x}', '('])} |\n")
        return
    if name == "run.lock":
        path.write_text(json.dumps({"pid": 1, "host": socket.gethostname(), "start": 1e400}))
    values = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(value)}\n" for value in mutate(rng, values)))


@pytest.mark.parametrize("number", range(12))
def test_damaged_record_takes_no_page_with_it(number, runs_dir, tmp_path, capsys):
    for case in range(10):
        rng, directory = random.Random(f"{number} {case}"), tmp_path / str(case)
        shutil.copytree(runs_dir, directory)
        if number or case:
            damage_record(rng, directory / "slow")
        else:
            (directory / "slow/metrics.jsonl").write_text('{"step": 1, "steps": "x"}\n')
        code = main(["report", str(directory / "slow")])
        errors = capsys.readouterr().err
        assert code in (0, 2) and errors.count("\n") == (code == 2) and "bug" not in errors, errors
        response = RunPages(directory).respond("GET", "/", {}, "localhost")
        assert response.status_code == 200 and b'href="/runs/quick"' in response.body
