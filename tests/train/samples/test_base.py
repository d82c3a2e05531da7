"""Tests of train/samples/base.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    write_texts(directory)
    return directory


def test_trouble_with_the_report_is_said_once_and_ends_no_training(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no such head")

    monkeypatch.setattr("polyhead.train.report.take_samples", fail)
    notes = Notes()
    _, outcome = run_training(task_recipe(place, "translation", place / "trouble"), report=notes)
    assert outcome.status == "done"
    assert [line for line in notes.said if "report is incomplete" in line] == [
        "warning: the report is incomplete: no such head"
    ]
    assert "Training is done" in (place / "trouble" / "report.html").read_text()
