from pathlib import Path

import pytest
from tests.compare.compare_helpers import compare

from polyhead.cli import main
from polyhead.compare.tasks.base import get_compared_task


@pytest.mark.usefixtures("run_trials")
def test_single_text_gives_no_p_value():
    lines = Path("valid.tsv").read_text().splitlines()
    Path("one.tsv").write_text("\n".join(lines[:2]) + "\n")
    rows = compare("classification", "data.valid=one.tsv", "data.test=null", "--vary", "norm=rmsnorm")
    for row in rows.values():
        for measure in get_compared_task("classification").measures:
            assert row[f"{measure.name}_interval"] == [pytest.approx(row[measure.name])] * 2
            assert row[f"{measure.name}_p"] is None


@pytest.mark.usefixtures("run_trials")
def test_texts_with_unknown_label_are_counted(capsys):
    with Path("test.tsv").open("a") as file:
        file.write("never\ta dog\n")
    rows = compare("classification", "--vary", "norm=rmsnorm")
    note = "8 of 9 texts; skipped 1 with an unknown label (first: "
    assert all(note in row["note"] for row in rows.values())
    assert "with an unknown" in capsys.readouterr().out
    assert main(["train", "classification.yaml", "out=run", "train.steps=1"]) == 0
    assert note in Path("run/README.md").read_text()
