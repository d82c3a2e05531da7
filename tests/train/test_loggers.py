"""metrics.jsonl, the lines and the bar."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
from tests.train.conftest import Notes

from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.train.loggers import JsonlLogger, ProgressBar, Reporters, TensorBoardLogger, TextLogger
from polyhead.viz.run_record import read_metrics

ROW = {
    "loss": 1.23456,
    "lr": 3.3e-7,
    "tokens_per_s": 4321.0,
    "ms_per_step": 500.0,
    "skipped": 0,
    "step": 3,
    "steps": 10,
}


def test_rows_are_strict_json_and_small_numbers_keep_their_digits(tmp_path: Path) -> None:
    metrics = JsonlLogger(tmp_path / "m.jsonl")
    metrics.log_train(ROW)
    metrics.log_valid({"step": 3, "loss": math.nan, "ppl": math.inf, "bleu": 1 / 3})
    metrics.close()
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"split": "train", **ROW}
    assert lines[1] == '{"split": "valid", "step": 3, "loss": null, "ppl": null, "bleu": 0.33333333}'


def test_a_row_can_be_read_before_the_run_ends(tmp_path: Path) -> None:
    metrics = JsonlLogger(tmp_path / "m.jsonl")
    metrics.log_train(ROW)
    assert len(read_metrics(tmp_path / "m.jsonl")) == 1
    metrics.close()


@pytest.mark.acceptance("B9")
def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"split": "train", "step": {s}}}\n' for s in (1, 2, 3, 4)) + '{"split": "tra')
    resumed = JsonlLogger(path, from_step=2)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    resumed.log_train({"step": 3})
    resumed.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    JsonlLogger(path).close()
    assert read_metrics(path) == []


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', '{"step": "3"}'])
def test_a_damaged_file_of_metrics_is_not_overwritten(line: str, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(
        UserError, match=r"m.jsonl is damaged: not every line is an object with a step; move it away"
    ):
        JsonlLogger(path, from_step=2)
    assert path.read_text().count("\n") == 3


def test_lines_tell_the_loss_the_speed_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TextLogger()
    lines.log_train(ROW)
    lines.log_train(ROW | {"skipped": 2})
    lines.log_valid({"step": 3, "epoch": 0, "loss": 2.0, "bleu": 31.4159, "best": 1.0})
    lines.log_valid({"step": 6, "epoch": 0, "loss": 2.0, "best": 0.0})
    lines.info("so it goes")
    assert capsys.readouterr().err.splitlines() == [
        "step      3/10  loss 1.235  lr 3.30e-07  4,321 tokens/s  4 s left",
        "step      3/10  loss 1.235  lr 3.30e-07  4,321 tokens/s  2 skipped  4 s left",
        "step      3  valid  loss 2.000  bleu 31.416  best so far",
        "step      6  valid  loss 2.000",
        "so it goes",
    ]


def test_a_bar_can_be_closed_before_and_after_its_first_row(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressBar().close()
    bar = ProgressBar()
    bar.log_train(ROW)
    bar.log_valid({"step": 3, "loss": 2.0, "best": 1.0})
    bar.info("[not markup]")
    bar.close()
    err = capsys.readouterr().err
    assert "loss 2.000  best so far" in err
    assert "[not markup]" in err


def test_several_reporters_hear_the_same(tmp_path: Path) -> None:
    a, b = Notes(), Notes()
    with Reporters(a, b, JsonlLogger(tmp_path / "m.jsonl")) as told:
        told.log_train(ROW)
        told.log_valid({"step": 3})
        told.info("hello")
    assert a.rows == b.rows == [{"split": "train", **ROW}, {"split": "valid", "step": 3}]
    assert a.said == ["hello"]


def test_tensorboard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=re.escape(install_command("board"))):
        TensorBoardLogger(tmp_path)


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardLogger(tmp_path)
    board.log_train(ROW)
    board.close()
    (events,) = tmp_path.glob("events*")
    content = events.read_bytes()
    assert all(f"train/{name}".encode() in content for name in ROW if name not in ("step", "steps"))
