"""Tests of compare/trial.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyhead.cli import main

OUT = Path("runs/compare-toy")


def rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((OUT / "compare.json").read_text())["rows"]}


@pytest.mark.usefixtures("place")
def test_what_cannot_be_built_and_what_fails_are_rows_that_say_so(
    in_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "toy.yaml", "--budget", "12steps", "--vary", "n_heads=3", "--vary", "lr=1e38"]
    assert main(command) == 0
    out = capsys.readouterr().out
    found = rows()
    assert (found["n_heads=3"]["status"], found["base"]["status"]) == ("refused", "done")
    assert found["n_heads=3"]["message"].startswith("model: d_model (16) must be divisible by n_heads (3)")
    failed = found["lr=1e38"]
    assert failed["status"] == "failed"
    assert "not finite" in failed["message"]
    assert failed["loss"] is None
    assert "lr=1e38: failed: " in out
    assert "n_heads=3: cannot be built: " in out
    assert main(command) == 0
    assert in_process == ["base.s1", "lr=1e38.s1"], "a divergence would come again: it is a result"


@pytest.mark.usefixtures("place")
def test_memory_that_is_wanting_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, in_process: list[str]
) -> None:
    def full(*args: object, **settings: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("polyhead.compare.trial.run_training", full)
        assert main(["compare", "toy.yaml", "--budget", "1steps"]) == 1
        assert rows()["base"]["message"] == "out of memory"
    assert main(["compare", "toy.yaml", "--budget", "1steps"]) == 0
