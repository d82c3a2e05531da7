import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe

from polyhead.core.choice import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.samples.base import decode_readable


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


def test_hidden_tokens_are_shown_in_their_place():
    t = train_tokenizer(["two dogs bark"], Choice("char"), 60)
    (ids,) = t.encode(["two dogs bark"])
    for hidden, text in ((0, "[mask]wo dogs bark"), (5, "two d [mask]gs bark"), (8, "two dogs [mask]bark")):
        row = [t.bos_id, *ids[:hidden], t.mask_id, *ids[hidden + 1 :], t.eos_id]
        assert decode_readable(t, row) == text
