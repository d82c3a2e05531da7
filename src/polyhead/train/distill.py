"""Learning from a teacher: its probabilities and its vectors, besides the labels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.errors import UserError, at
from polyhead.loading import load
from polyhead.models.ensemble import log_mean
from polyhead.nn.loss import Loss, classification
from polyhead.nn.weights import weights
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.sections import DistillSection
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.start import with_classes
from polyhead.train.tasks.base import OfWholeTexts, RunTask, Scores, Teachable

BETTER = ("accuracy", "f1", "mcc", "bleu", "chrf")  # measures of which more is better
ROUNDS = 3


class Teacher(NamedTuple):
    """A run, and the task as it reads it: that of the student, or the same texts in its own tokens."""

    run: Run
    task: Teachable


class Taught(NamedTuple):
    """A batch as the student reads it, and as each teacher does."""

    own: Any
    theirs: tuple[Any, ...]


class Distilled:
    """A task whose loss also asks to say what a teacher says, or the mean of several.

    Equation: L = a T² KL(p_teacher^(1/T) ‖ p_student^(1/T)) + b CE(labels) + c Σ (1 - cos(h_student, h_teacher))
    Paper: Hinton et al., 2015, sec. 2; Sanh et al., 2019, sec. 3 (whose a, b, c are 5, 2, 1)
    """

    def __init__(
        self, task: Teachable, teachers: Sequence[Teacher], config: DistillSection, smoothing: float = 0.0
    ) -> None:
        self.task, self.teachers, self.config, self.smoothing = task, teachers, config, smoothing
        self.identity, self.title, self.labels, self.use = task.identity, task.title, task.labels, task.use
        for teacher in teachers:
            teacher.run.model.requires_grad_(False)

    def plan(self, epoch: int) -> Sequence[Any]:
        return self.task.plan(epoch)

    def hardest(self) -> Any:
        return self.task.hardest()

    def deal(self, rows: Any, n: int) -> list[Any]:
        return self.task.deal(rows, n)

    def batch(self, rows: Any) -> Taught:
        own = self.task.batch(rows)
        return Taught(
            own, tuple(own if one.task is self.task else one.task.batch(rows) for one in self.teachers)
        )

    def count(self, batch: Taught) -> int:
        return self.task.count(batch.own)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        return self.task.evaluate(model, each)

    def scores(self, model: nn.Module, batch: Taught) -> Scores:
        return self.task.scores(model, batch.own)

    def loss(self, model: nn.Module, batch: Taught) -> Loss:
        """The sum of all three; nll is that of the labels, as without a teacher."""
        c, said = self.config, self.task.scores(model, batch.own)
        with torch.no_grad():
            taught = [self._asked(i, theirs) for i, theirs in enumerate(batch.theirs)]
        own = classification(said.logits, said.labels, self.smoothing)
        # published models of one tokenizer differ in rows that stand for no token
        known = min(one.logits.size(-1) for one in (said, *taught))
        teachers = log_mean([one.logits[:, :known] for one in taught])
        soft = softened(said.logits[:, :known], teachers, c.temperature)
        total = c.logits * soft + c.labels * own.total
        if c.hidden:
            apart = (1 - F.cosine_similarity(said.hidden.float(), taught[0].hidden.float(), dim=-1)).mean()
            total = total + c.hidden * own.count * apart
        return Loss(total, own.nll, own.count)

    def _asked(self, i: int, batch: Any) -> Scores:
        """What a teacher says to a batch."""
        teacher = self.teachers[i]
        with at(f"distill.teacher {self.config.teacher[i]}"):
            return teacher.task.scores(teacher.run.model, batch)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """Those of the task, and what the student has of its teacher: size, speed, and the share of quality."""
        everyone = [Teacher(run, self.task), *self.teachers]
        whose = "teacher's" if len(self.teachers) == 1 else "teachers'"
        own, *others = (sum(p.numel() for p in one.run.model.parameters()) for one in everyone)
        with torch.inference_mode():
            measured = [one.task.evaluate(one.run.model, each) for one in everyone]
            # a single work is done by one process, undisturbed by others
            [seconds] = each(lambda n: [[_time(one) for one in everyone] for _ in range(n)], [ROUNDS])
        faster = statistics.median(sum(theirs) / ours for ours, *theirs in seconds)
        how = "faster" if faster >= 1 else "slower"
        report = {
            "parameters": f"{own:,}, the {whose} {sum(others):,}: {_beside(own, sum(others))}",
            "speed": f"{faster:.2f} times the {whose} on the validation text ({abs(faster - 1):.0%} {how})",
        }
        for name in measured[0]:
            value, *theirs = (one[name] for one in measured)
            best = max(theirs)
            kept = f": {value / best:.1%} kept" if name in BETTER and best > 0 else ""
            figures = ", ".join(f"{one:.4f}" for one in theirs)
            report[f"valid {name} beside the {whose}"] = f"{value:.4f} and {figures}{kept}"
        return report | self.task.facts(run, each)


def _beside(own: int, theirs: int) -> str:
    """How much smaller or larger."""
    return f"{abs(1 - own / theirs):.0%} {'smaller' if own <= theirs else 'larger'}"


def plain(task: RunTask) -> RunTask:
    """A task without its teachers."""
    return task.task if isinstance(task, Distilled) else task


def softened(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student) of both distributions at a temperature, summed over rows: (N, L), (N, L) -> ().

    T² keeps the size of its gradient beside that of the labels (Hinton et al., 2015, sec. 2).
    """
    p = (teacher.float() / temperature).softmax(-1)
    log_q = (student.float() / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q, p, reduction="sum")


def open_teachers(config: DistillSection | None, device: str = "auto") -> list[Run]:
    """The runs to learn from, before any text is read."""
    with at("distill.teacher"):
        return [load(one, device=device) for one in config.teacher] if config else []


def distilled(task: RunTask, recipe: Recipe, teachers: Sequence[Run], tokenizer: Tokenizer) -> Distilled:
    """The task of a recipe with its teachers; a UserError where they do not know the same tokens or classes.

    A class is that of a whole text, so a teacher of classes may know other tokens than its student.
    """
    config = recipe.distill
    assert config is not None and isinstance(task, Teachable)  # as the recipe has been asked
    if config.hidden and len(config.teacher) > 1:
        raise UserError(
            f"distill.hidden compares vectors with those of one teacher, and here are {len(config.teacher)}"
        )
    return Distilled(
        task,
        [
            Teacher(run, _read_by(run, name, task, recipe, tokenizer))
            for name, run in zip(config.teacher, teachers, strict=True)
        ],
        config,
        recipe.train.smoothing,
    )


def _read_by(teacher: Run, name: str, task: Teachable, recipe: Recipe, tokenizer: Tokenizer) -> Teachable:
    """The task as a teacher reads it."""
    config, wanted = teacher.config, recipe.model.kind
    if config.kind != wanted:
        raise UserError(
            f"distill.teacher: {name} is of kind {config.kind!r}, and task {recipe.task.name!r} trains {wanted!r}"
        )
    if sorted(config.labels) != sorted(task.labels):
        own, asked = (", ".join(labels) or "none" for labels in (config.labels, task.labels))
        raise UserError(f"distill.teacher: the classes of {name} are {own}, not {asked}")
    _number(teacher, task.labels)
    if not (config.labels or config.head):
        raise UserError(f"distill.teacher: {name} gives vectors alone, no probabilities to learn from")
    if teacher.tokenizer.sha256 == tokenizer.sha256:
        return task
    assert recipe.distill is not None
    if not isinstance(task, OfWholeTexts):
        way_out = "or let the teacher write the training text (polyhead translate) and learn from that"
    elif recipe.distill.hidden:
        way_out = "or leave distill.hidden at 0, which compares the vectors of each token"
    else:
        return task.read_by(teacher, recipe)
    raise UserError(
        f"distill.teacher: {name} has another tokenizer than the student; begin with it (start: ...), {way_out}"
    )


@torch.no_grad()
def _number(teacher: Run, labels: tuple[str, ...]) -> None:
    """Give the classes of a teacher the numbers that they have in the task."""
    own = weights(teacher.model)
    for name, tensor in with_classes(own, teacher.config.labels, labels).items():
        if tensor is not own[name]:
            own[name].copy_(tensor)
    teacher.model.config = teacher.config.model_copy(update={"labels": labels})


def check_widths(task: Distilled, d_model: int) -> None:
    """Vectors are compared where both models have as many features."""
    width = task.teachers[0].run.config.d_model
    if task.config.hidden and width != d_model:
        raise UserError(
            f"distill.hidden compares vectors, and the student has {d_model} features, the teacher {width}"
        )


def _time(one: Teacher) -> float:
    """Seconds that the validation text takes."""
    start = time.perf_counter()
    one.task.evaluate(one.run.model)
    return time.perf_counter() - start
