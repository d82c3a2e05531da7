import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe

from polyhead.train.run_training import run_training


@pytest.mark.usefixtures("no_fsync")
def test_error_in_report_is_one_warning(corpus_dir, monkeypatch):
    def fail(*args):
        raise RuntimeError("no such head")

    monkeypatch.setattr("polyhead.train.report.take_samples", fail)
    recipe, notes = task_recipe(corpus_dir, "translation", corpus_dir / "run"), Notes()
    _, outcome = run_training(recipe, report=notes)
    assert outcome.status == "done"
    lines = [line for line in notes.lines if "report is incomplete" in line]
    assert lines == ["warning: the report is incomplete: no such head"]
    assert "Training is done" in (recipe.out / "report.html").read_text()
