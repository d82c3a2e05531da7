"""Tests of compare/tasks/classification.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compare.tasks_helpers import compared_rows
from tests.compare.tasks_helpers import texts as texts

from polyhead.cli import main
from polyhead.compare.tasks.base import get_compared_task


@pytest.mark.usefixtures("texts", "in_process")
def test_of_one_text_nothing_is_called_significant() -> None:
    lines = Path("valid.tsv").read_text().splitlines()
    Path("one.tsv").write_text("\n".join(lines[:2]) + "\n")
    rows = compared_rows("classification", "data.valid=one.tsv", "data.test=null", "--vary", "norm=rmsnorm")
    for row in rows.values():
        for of in get_compared_task("classification").measures:
            assert row[f"{of.name}_interval"] == [pytest.approx(row[of.name])] * 2
            assert row[f"{of.name}_p"] is None


@pytest.mark.usefixtures("texts", "in_process")
def test_texts_of_an_unknown_label_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("test.tsv").open("a") as file:
        file.write("never\ta dog\n")
    rows = compared_rows("classification", "--vary", "norm=rmsnorm")
    said = "8 of 9 texts; skipped 1 with an unknown label (first: "
    assert all(said in row["note"] for row in rows.values())
    assert "with an unknown" in capsys.readouterr().out
    assert main(["train", "classification.yaml", "out=run"]) == 0
    assert said in Path("run/README.md").read_text()
