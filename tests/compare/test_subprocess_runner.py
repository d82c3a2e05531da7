"""Tests of compare/subprocess_runner.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyhead.cli import main
from polyhead.compare import run

COMMAND = ["compare", "toy.yaml", "--budget", "4steps", "--vary", "norm=layernorm,rmsnorm"]

OUT = Path("runs/compare-toy")


def rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((OUT / "compare.json").read_text())["rows"]}


@pytest.mark.usefixtures("place")
def test_a_cell_that_was_killed_is_a_row_and_is_tried_again(
    in_process: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run.run_subprocess
    monkeypatch.setattr(
        run,
        "run_subprocess",
        lambda directory, stop: -9 if "rmsnorm" in str(directory) else whole(directory, stop),
    )
    assert main(COMMAND) == 0
    assert rows()["norm=rmsnorm"]["message"] == "killed by the system, most likely out of memory"
    monkeypatch.setattr(run, "run_subprocess", whole)
    capsys.readouterr()
    assert main(COMMAND) == 0
    assert rows()["norm=rmsnorm"]["status"] == "done"
    assert in_process == ["base.s1", "norm=rmsnorm.s1"]
