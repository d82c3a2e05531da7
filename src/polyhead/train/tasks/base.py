"""What a task is: all that a run must know of what it learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from polyhead.core.i18n import tr
from polyhead.evaluate.baselines import Baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.loop import Task
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter


class Scores(NamedTuple):
    """What a model says of a batch, for a student to be held against."""

    logits: Tensor  # (N, L) where something is asked
    labels: Tensor  # (N,)
    hidden: Tensor  # (M, C) the last vectors of the tokens that are there


class Counted(Protocol):
    """What became of a text, in pairs or conversations."""

    where: str
    read: int
    kept: int
    overlong: int


def say_split(report: Reporter, split: str, *counts: str) -> None:
    """Report what became of the text of a split: 'train: train.en + train.de: 40 of 40 pairs'."""
    report.say(tr("{name}: {value}", name=tr(split), value=tr(", ").join(counts)))


def warn_of_few(counted: Counted, recipe: Recipe, report: Reporter) -> None:
    """Say so where most of a text is left out, and which key lets in what is too long."""
    if 2 * counted.kept >= counted.read:
        return
    limits = {"data.max_len": recipe.data.max_len, "model.max_len": recipe.model.max_len}
    most = min(limits.values())
    raised = tr(" and ").join(key for key, limit in limits.items() if limit == most)
    line = tr(
        "warning: {where}: {kept:,} of {read:,} are left, the others are skipped",
        where=counted.where,
        kept=counted.kept,
        read=counted.read,
    )
    if counted.overlong:
        line += tr(
            "; {count:,} are longer than {most:,} tokens: raise {keys}, or split them",
            count=counted.overlong,
            most=most,
            keys=raised,
        )
    report.say(line)


class RunTask(Task, Protocol):
    """A task with its text, for one run."""

    identity: Mapping[str, str]  # of the text, so that no run is resumed on another
    title: str  # of the run's README.md
    use: str  # a command that uses the run
    labels: tuple[str, ...]  # classes that the model tells apart, if it does

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """What is measured of the final weights, besides the loss, for people to read."""
        ...


@runtime_checkable
class Teachable(RunTask, Protocol):
    """A task whose loss is made of scores, which a teacher gives as well."""

    def scores(self, model: nn.Module, batch: Any) -> Scores:
        """Of a batch."""
        ...


@runtime_checkable
class HasBaselines(Protocol):
    """A task whose scores are shown beside those of guesses that have only counted the training text."""

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """What the baselines need of the training text."""
        ...

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of the validation or the test text, by the names of the measures."""
        ...


@runtime_checkable
class OfWholeTexts(Teachable, Protocol):
    """A task that asks for something of whole texts, whatever tokens they are made of."""

    def read_by(self, other: Run, recipe: Recipe) -> Teachable:
        """The same texts, row by row, in the tokens of another model."""
        ...


class TaskPart(Protocol):
    """A task by name, before it has a text."""

    kind: str  # of the models it trains
    label_smoothing: float  # where the recipe gives none
    metrics: tuple[str, ...]  # of those that are measured, which may decide what checkpoint is best

    def check(self, recipe: Recipe) -> None:
        """Every file is there and is what it should be, or a UserError says what is wrong."""
        ...

    def texts(self, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        ...

    def open(self, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> RunTask:
        """With its text tokenized, or found so. A mistake in the test text is told now, not after all training."""
        ...


@runtime_checkable
class OfClasses(TaskPart, Protocol):
    """A task whose classes are those of its text."""

    def classes(self, recipe: Recipe) -> tuple[str, ...]:
        """Those of the training text."""
        ...

    def open_with(
        self, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> RunTask:
        """As ``open``, where the classes are known; the text need not have all of them."""
        ...
