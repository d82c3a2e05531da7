"""A classifier learns from teachers of other tokens: the loss by its formula, from texts that each reads for
itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes
from tests.train.tasks.classification_helpers import (
    learned,  # noqa: F401  # fixtures
    place,  # noqa: F401  # fixtures
    recipe,  # fixtures
)

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")

TASK_OF = {"name": "classification", "token_dropout": 0.5}


@pytest.fixture(scope="module")
def teachers(unsynced: None, place: Path, learned: Any) -> list[Path]:  # noqa: F811
    """One with the student's tokens, and one of characters that reads no more than 16 of them."""
    other = recipe(
        place, "chars", model={"max_len": 16, "n_segments": 2}, train={"steps": 60, "save_every": 50}
    ).model_dump(mode="json")
    run_training(Recipe.model_validate(other | {"tokenizer": {"kind": "char"}}), report=Notes())
    return [learned[0], place / "chars"]


def student(place: Path, names: list[Path], out: str = "student", **changes: Any) -> Recipe:  # noqa: F811
    asked = {"teacher": [str(name) for name in names], "temperature": 3.0, "labels_weight": 0.25} | changes
    plain = recipe(place, out, task=TASK_OF, train={"steps": 12}).model_dump(mode="json")
    return Recipe.model_validate(plain | {"distill": asked})


def test_each_teacher_reads_the_text_in_its_own_tokens(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    """Against classify(), which reads the lines of the file itself; nothing is hidden from a teacher of
    other tokens.
    """
    asked = student(place, teachers[1:])
    tokenizer = ph.load(teachers[0]).tokenizer
    task = TASK.get("classification").open(asked, tokenizer, Notes())
    wrapped = make_distillation_task(task, asked, load_teachers(asked.distill), tokenizer)
    assert wrapped.teachers[0].run.tokenizer.sha256 != tokenizer.sha256
    lines = [line.split("\t") for line in (place / "train.tsv").read_text().splitlines()[1:]]
    model = build(asked.model.with_vocabulary(tokenizer.vocab_size, task.labels), seed=5).eval()
    for rows in wrapped.epoch_batches(0)[:3]:
        torch.manual_seed(8)
        batch = wrapped.collate(rows)
        torch.manual_seed(8)
        plain = task.collate(rows)
        torch.testing.assert_close(
            batch.student.inputs.tokens, plain.inputs.tokens
        )  # the draws are those of the student
        texts, labels = [lines[row][1] for row in rows], [lines[row][0] for row in rows]
        told = ph.load(teachers[1]).classify(texts)
        p = torch.tensor(
            [[one.probabilities[label] for label in task.labels] for one in told], dtype=torch.float64
        )
        with torch.no_grad():
            q = task.compute_logits(model, plain).logits.double().softmax(-1)
        soft_p, soft_q = ((x ** (1 / 3)) / (x ** (1 / 3)).sum(-1, keepdim=True) for x in (p, q))
        right = q.gather(1, torch.tensor([[task.labels.index(label)] for label in labels]))
        wanted = 9 * (soft_p * (soft_p / soft_q).log()).sum() - 0.25 * right.log().sum()
        loss = wrapped.loss(model, batch)
        assert float(loss.total.detach()) == pytest.approx(float(wanted), rel=1e-4)
        assert float(loss.nll.detach()) == pytest.approx(-float(right.log().sum()), rel=1e-4)
        assert loss.count == wrapped.count_labels(batch) == len(rows)


def test_a_teacher_of_the_same_tokens_reads_what_the_student_reads(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    """With what is hidden from it."""
    asked, tokenizer = student(place, teachers), ph.load(teachers[0]).tokenizer
    task = TASK.get("classification").open(asked, tokenizer, Notes())
    batch = make_distillation_task(task, asked, load_teachers(asked.distill), tokenizer).collate(
        task.epoch_batches(0)[0]
    )
    assert batch.teachers[0] is batch.student
    hidden = [(one.inputs.tokens == tokenizer.mask_id).any() for one in batch.teachers]
    assert hidden == [True, False]


def test_a_run_of_teachers_of_both_kinds_is_reported(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    """Each teacher is measured as its own run was."""
    notes = Notes()
    run, _ = run_training(student(place, teachers), report=notes)
    assert run.tokenizer.vocab_size == 300
    card = (run.recipe.out / "README.md").read_text()  # type: ignore[union-attr]
    own = [
        re.search(r"valid accuracy \| ([\d.]+)", (name / "README.md").read_text())[1]  # type: ignore[index]
        for name in teachers
    ]
    told = re.findall(r"valid accuracy, compared with the teachers' \| [\d.]+ and ([\d.]+), ([\d.]+)", card)
    assert told == [tuple(own)]
    assert own[0] != own[1]


def test_a_teacher_reads_as_far_as_it_can(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    """However long the student's texts are, and rows of its batches."""
    asked = student(place, teachers[1:])
    data = asked.data.model_copy(update={"max_len": 6})
    train = asked.train.model_copy(update={"max_tokens": 12})
    asked = asked.model_copy(update={"data": data, "train": train})
    tokenizer = ph.load(teachers[0]).tokenizer
    task = TASK.get("classification").open(asked, tokenizer, Notes())
    wrapped = make_distillation_task(task, asked, load_teachers(asked.distill), tokenizer)
    ((run, read),) = wrapped.teachers
    assert max(wrapped.collate(rows).student.inputs.tokens.size(1) for rows in wrapped.epoch_batches(0)) == 6
    assert (
        max(wrapped.collate(rows).teachers[0].inputs.tokens.size(1) for rows in wrapped.epoch_batches(0))
        == 16
    )
    own = re.search(r"valid accuracy \| ([\d.]+)", (teachers[1] / "README.md").read_text())
    assert f"{read.evaluate(run.model)['accuracy']:.4f}" == own[1]  # type: ignore[index]


def test_vectors_of_other_tokens_are_not_compared(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    with pytest.raises(UserError, match=r"another tokenizer .* or set distill\.hidden_weight=0"):
        run_training(student(place, teachers[1:], "none", hidden_weight=1.0), report=Notes())


def test_a_teacher_may_number_the_classes_otherwise(place: Path, teachers: list[Path]) -> None:  # noqa: F811
    """It teaches and is measured by their names."""
    turned = ph.load(teachers[1])
    labels = turned.config.labels[::-1]
    with torch.no_grad():
        for tensor in turned.model.classifier.parameters():
            tensor.copy_(tensor.flip(0))
    turned.model.config = turned.config.model_copy(update={"labels": labels})
    turned.save(place / "turned")
    tokenizer, found = ph.load(teachers[0]).tokenizer, []
    for name in (teachers[1], place / "turned"):
        asked = student(place, [name])
        task = TASK.get("classification").open(asked, tokenizer, Notes())
        wrapped = make_distillation_task(task, asked, load_teachers(asked.distill), tokenizer)
        torch.manual_seed(8)
        batch = wrapped.collate(wrapped.epoch_batches(0)[0])
        model = build(asked.model.with_vocabulary(tokenizer.vocab_size, task.labels), seed=5).eval()
        ((run, read),) = wrapped.teachers
        found.append((float(wrapped.loss(model, batch).total.detach()), read.evaluate(run.model)["accuracy"]))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    other = ph.load(teachers[1])
    other.model.config = other.config.model_copy(update={"labels": ("x", *labels[1:])})
    other.save(place / "other")
    asked = student(place, [place / "other"])
    with pytest.raises(UserError, match=r"distill\.teacher: the classes of .*other are x, "):
        make_distillation_task(task, asked, load_teachers(asked.distill), tokenizer)
