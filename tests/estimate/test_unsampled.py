"""Tests of estimate/unsampled.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.estimate.data_sample_helpers import both, check, recipe, rows
from tests.estimate.data_sample_helpers import home as home

from polyhead.config.config_sections import DistillConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.estimate import data_sample
from polyhead.estimate.plan import estimate
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

BPE = {"kind": "bpe", "vocab_size": 300}


@pytest.fixture
def uneven(home: Path) -> Path:
    """A text with words and a class of their own in a stretch of which a sample sees nothing."""
    given = rows(4000)
    given[260:300] = [row.upper() for row in given[260:300]]
    Path("t.txt").write_text("".join(f"{row}\n" for row in given))
    labelled = [f"{row}\t{'rare' if row.isupper() else 'xy'[i % 2]}\n" for i, row in enumerate(given)]
    Path("t.tsv").write_text("text\tlabel\n" + "".join(labelled))
    Path("v.txt").write_text("".join(f"{row}\n" for row in given[290:310]))
    Path("v.tsv").write_text("text\tlabel\n" + "".join(labelled[290:310]))
    return home


def taught(task: str, tokenizer: dict[str, Any], labels: tuple[str, ...] = (), **distill: Any) -> Recipe:
    """A recipe whose teacher is saved here, with a tokenizer of the whole text."""
    ends = "tsv" if task == "classification" else "txt"
    asked, theirs = (recipe(task, [f"t.{ends}"], [f"v.{ends}"], tokenizer=one) for one in (BPE, tokenizer))
    own = train_tokenizer(
        TASK.get(task).iter_texts(theirs), theirs.tokenizer.kind, theirs.tokenizer.vocab_size
    )
    config = asked.model.with_vocabulary(own.vocab_size, labels)
    Run(build(config, 1), own, GenerationConfig()).save(Path("teacher"))
    return asked.model_copy(update={"distill": DistillConfig(teacher=["teacher"], **distill)})


def test_a_teacher_tells_which_tokens_there_are(uneven, monkeypatch):
    """Those of the sample are others, and training would take none of them."""
    part, whole = both(taught("language-model", BPE), monkeypatch)
    check(part, whole)
    assert part.parameters == whole.parameters
    assert part.memory == whole.memory
    assert "a sample does not give the vocabulary of the whole text: that of teacher is assumed" in part.notes
    assert not whole.notes


@pytest.mark.parametrize("tokenizer", [{"kind": "char"}, {"kind": "bpe", "vocab_size": 301}], ids=str)
def test_a_teacher_of_tokens_that_a_student_cannot_have_is_refused(uneven, monkeypatch, tokenizer):
    asked = taught("language-model", tokenizer)
    for most in (data_sample._MAX_SPLIT_BYTES, 1 << 30):
        monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", most)
        with pytest.raises(UserError, match="teacher has another tokenizer than the student"):
            estimate(asked, probe=False)


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_a_teacher_tells_which_classes_there_are(uneven, monkeypatch, hidden):
    """One that is not in the sample counts, and is no mistake."""
    part, whole = both(taught("classification", BPE, ("rare", "x", "y"), hidden_weight=hidden), monkeypatch)
    check(part, whole)
    assert part.parameters == whole.parameters


def test_a_teacher_of_other_tokens_reads_for_itself(uneven, monkeypatch):
    part, whole = both(taught("classification", {"kind": "char"}, ("rare", "x", "y")), monkeypatch)
    check(part, whole)
    assert (part.parameters, part.memory.teachers) == (whole.parameters, whole.memory.teachers)
    assert len(part.notes) == 1


def test_a_teacher_who_lacks_a_class_is_refused(uneven):
    with pytest.raises(UserError, match="the classes of teacher are rare, x, not x, y"):
        estimate(taught("classification", BPE, ("rare", "x")), probe=False)
