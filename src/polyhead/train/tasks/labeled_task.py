"""What the tasks on labeled texts share besides classification: reading, opening, and warnings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from polyhead.config.recipe import Recipe
from polyhead.core.option_types import Decay
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.base import warn_learned_texts
from polyhead.train.tasks.classification import (
    ClassificationTask,
    open_labeled_stores,
    open_split_labeled,
)
from polyhead.train.tasks.objectives import Objective


class LabeledTask(ABC):
    """A task on labeled texts before its data is opened; each one has its classes and its objective."""

    kind = "encoder"
    label_smoothing = 0.0
    task_type: ClassVar[type[ClassificationTask]] = ClassificationTask
    iter_texts = staticmethod(ClassificationTask.iter_texts)

    def __init__(self, *, token_dropout: Decay = 0.0) -> None: ...  # noqa: B027

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column."""
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @classmethod
    @abstractmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The names of the outputs, from the training text."""

    @classmethod
    @abstractmethod
    def make_objective(
        cls, train: LabeledStore, labels: Sequence[str], recipe: Recipe, report: Reporter
    ) -> Objective:
        """What is learned, after a report of the labels of the training text."""

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @classmethod
    def open_with_labels(
        cls, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``, with known labels; texts of a split that the training text has too are reported."""
        stores = open_labeled_stores(recipe, labels, tokenizer, report)
        objective = cls.make_objective(stores["train"], labels, recipe, report)
        dropout = recipe.task.options["token_dropout"]
        task = cls.task_type(stores, labels, tokenizer, recipe.train, objective, token_dropout=dropout)
        training_texts = stores["train"].hash_texts()
        for split, store in stores.items():
            if split != "train":
                lines = store.line_numbers.tolist()
                warn_learned_texts(split, store.hash_texts(), lines, training_texts, report)
        report.info(task.make_sampler(task.train).describe())
        return task
