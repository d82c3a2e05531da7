from pathlib import Path

import pytest
from tests.estimate import data_sample_helpers as helpers
from tests.estimate.data_sample_helpers import workdir as workdir

from polyhead.config.config_sections import DistillConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.estimate import inputs
from polyhead.estimate.plan import estimate
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

BPE = {"kind": "bpe", "vocab_size": 300}
CLASSES = ("rare", "x", "y")


@pytest.fixture(autouse=True)
def write_texts(workdir):
    """Write text with words and a class in a stretch that is not sampled."""
    lines = helpers.make_lines(4000)
    lines[260:300] = [line.upper() for line in lines[260:300]]
    rows = [f"{line}\t{'rare' if line.isupper() else 'xy'[i % 2]}" for i, line in enumerate(lines)]
    for name, part in (("t", slice(None)), ("v", slice(290, 310))):
        helpers.write_lines(f"{name}.txt", lines[part])
        helpers.write_lines(f"{name}.tsv", ["text\tlabel", *rows[part]])


def make_distillation_recipe(task, tokenizer, labels=(), **distill):
    """A recipe with BPE, whose teacher is saved here with a tokenizer of the full text."""
    end = "tsv" if task == "classification" else "txt"
    files = [f"t.{end}"], [f"v.{end}"]
    recipe, teacher = (helpers.make_recipe(task, *files, tokenizer=settings) for settings in (BPE, tokenizer))
    texts = TASK.get(task).iter_texts(teacher)
    teacher_tokenizer = train_tokenizer(texts, teacher.tokenizer.kind, teacher.tokenizer.vocab_size)
    model = build(recipe.model.with_vocabulary(teacher_tokenizer.vocab_size, labels), 1)
    Run(model, teacher_tokenizer, GenerationConfig()).save(Path("teacher"))
    return recipe.model_copy(update={"distill": DistillConfig(teacher=["teacher"], **distill)})


def test_vocabulary_is_that_of_the_teacher(monkeypatch):
    """That of the sample is another one, which training would refuse."""
    sample, full = helpers.estimate_both(make_distillation_recipe("language-model", BPE), monkeypatch)
    helpers.assert_close(sample, full)
    assert (sample.parameters, sample.memory) == (full.parameters, full.memory)
    note = "a sample does not give the vocabulary of the whole text: that of teacher is assumed"
    assert note in sample.notes and not full.notes


@pytest.mark.parametrize("tokenizer", [{"kind": "char"}, {"kind": "bpe", "vocab_size": 301}], ids=str)
def test_teacher_with_other_tokens_is_refused(monkeypatch, tokenizer):
    recipe = make_distillation_recipe("language-model", tokenizer)
    for limit in (inputs._MAX_SPLIT_BYTES, 1 << 30):
        monkeypatch.setattr(inputs, "_MAX_SPLIT_BYTES", limit)
        with pytest.raises(UserError, match="teacher has another tokenizer than the student"):
            estimate(recipe, probe=False)


@pytest.mark.parametrize(("tokenizer", "hidden_weight"), [(BPE, 1.0), ({"kind": "char"}, 0.0)])
def test_classes_are_those_of_the_teacher(monkeypatch, tokenizer, hidden_weight):
    """With one that the sample does not contain; its tokens may be others."""
    recipe = make_distillation_recipe("classification", tokenizer, CLASSES, hidden_weight=hidden_weight)
    sample, full = helpers.estimate_both(recipe, monkeypatch)
    helpers.assert_close(sample, full)
    assert (sample.parameters, sample.memory.teachers) == (full.parameters, full.memory.teachers)
    assert len(sample.notes) == (1 if tokenizer != BPE else 2)


def test_teacher_without_a_class_is_refused():
    with pytest.raises(UserError, match="the classes of teacher are rare, x, not x, y"):
        estimate(make_distillation_recipe("classification", BPE, ("rare", "x")), probe=False)
