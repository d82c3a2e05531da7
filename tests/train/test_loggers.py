import json
import math
import re
import sys

import pytest
from tests.train.conftest import Notes, user_error

from polyhead.core.extras import install_command
from polyhead.train.loggers import JsonlLogger, ProgressBar, Reporters, TensorBoardLogger, TextLogger
from polyhead.viz.run_record import read_metrics

ROW = {"loss": 1.23456, "lr": 3.3e-7, "tokens_per_s": 4321.0, "ms_per_step": 500.0, "skipped": 0}
ROW |= {"step": 3, "steps": 10}


def test_jsonl_rows_are_strict_json_with_small_numbers(tmp_path):
    metrics = JsonlLogger(tmp_path / "m.jsonl")
    metrics.log_train(ROW)
    assert len(read_metrics(tmp_path / "m.jsonl")) == 1  # before the run ends
    metrics.log_valid({"step": 3, "loss": math.nan, "ppl": math.inf, "bleu": 1 / 3})
    metrics.close()
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"split": "train", **ROW}
    assert lines[1] == '{"split": "valid", "step": 3, "loss": null, "ppl": null, "bleu": 0.33333333}'


@pytest.mark.acceptance("B9")
def test_rows_after_checkpoint_are_dropped_on_resume(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"split": "train", "step": {s}}}\n' for s in (1, 2, 3, 4)) + '{"split": "tra')
    metrics = JsonlLogger(path, from_step=2)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    metrics.log_train({"step": 3})
    metrics.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    JsonlLogger(path).close()
    assert read_metrics(path) == []


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": "3"}'])
def test_damaged_metrics_are_not_overwritten(line, tmp_path):
    path, content = tmp_path / "m.jsonl", '{"step": 1}\n' + line + '\n{"step": 2}\n'
    path.write_text(content)
    with user_error(r"m.jsonl is damaged: not every line is an object with a step; move it away"):
        JsonlLogger(path, from_step=2)
    assert path.read_text() == content


def test_text_lines_have_loss_speed_and_time_left(capsys):
    lines = TextLogger()
    lines.log_train(ROW)
    lines.log_train(ROW | {"skipped": 2})
    lines.log_valid({"step": 3, "epoch": 0, "loss": 2.0, "bleu": 31.4159, "best": 1.0})
    lines.log_valid({"step": 6, "epoch": 0, "loss": 2.0, "best": 0.0})
    lines.info("a message")
    assert capsys.readouterr().err.splitlines() == [
        "step      3/10  loss 1.235  lr 3.30e-07  4,321 tokens/s  4 s left",
        "step      3/10  loss 1.235  lr 3.30e-07  4,321 tokens/s  2 skipped  4 s left",
        "step      3  valid  loss 2.000  bleu 31.416  best so far",
        "step      6  valid  loss 2.000",
        "a message",
    ]


def test_progress_bar_closes_with_and_without_rows(capsys):
    ProgressBar().close()
    notes = Notes()
    with Reporters(ProgressBar(), notes) as reporters:
        reporters.log_train(ROW)
        reporters.log_valid({"step": 3, "loss": 2.0, "best": 1.0})
        reporters.info("[not markup]")
    error = capsys.readouterr().err
    assert "loss 2.000  best so far" in error and "[not markup]" in error
    assert [row["split"] for row in notes.rows] == ["train", "valid"] and notes.lines == ["[not markup]"]


def test_tensorboard_gets_every_number(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with user_error(re.escape(install_command("board"))):
            TensorBoardLogger(tmp_path)
    pytest.importorskip("tensorboard")
    board = TensorBoardLogger(tmp_path)
    board.log_train(ROW)
    board.close()
    (events,) = tmp_path.glob("events*")
    content = events.read_bytes()
    assert all(f"train/{name}".encode() in content for name in ROW if name not in ("step", "steps"))
