"""Several labels per text, and a number per text: classification with another objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.config.model import ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.option_types import Decay
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import count_multi_labels
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.base import warn_learned_texts
from polyhead.train.tasks.classification import (
    ClassificationTask,
    open_labeled_stores,
    open_split_labeled,
    report_labels,
)
from polyhead.train.tasks.objectives import MultiLabel, Objective, Regression


@TASK.register("multi-label")
class MultiLabelTask:
    """Each text, or pair of texts, has any number of labels, also none.

    ``data.label`` is a list of labels in JSONL, or text with commas between the labels. A label is predicted
    from the probability ``generation.threshold``. The input is that of ``classification``.

    Equation: -1/L Σ_l [y_l log p_l + (1 - y_l) log(1 - p_l)],  p = sigmoid(W pool(encoder(x)) + b)
    Paper: Zhang & Zhou, 2006, sec. 3 (binary relevance with one network)
    When: a text has several topics, emotions or tags
    Recipe: task: {name: multi-label, token_dropout: 0.1}
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "micro_f1", "f1", "accuracy")
    problem_type: ProblemType = "multi_label_classification"

    iter_texts = staticmethod(ClassificationTask.iter_texts)

    def __init__(self, *, token_dropout: Decay = 0.0) -> None: ...

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column."""
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @staticmethod
    def read_classes(recipe: Recipe) -> tuple[str, ...]:
        """All labels of the training text."""
        return tuple(count_multi_labels(open_split_labeled(recipe, "train")))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @staticmethod
    def open_with_labels(
        labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``, with known labels."""
        stores = open_labeled_stores(recipe, labels, tokenizer, report)
        report_labels(stores["train"], labels, report)
        objective, options = MultiLabel(recipe.generation.threshold), recipe.task.options
        return make_objective_task(objective, stores, labels, recipe, tokenizer, report, **options)


@TASK.register("regression")
class RegressionTask:
    """Each text, or pair of texts, has a number: a grade, a price, how similar two texts are.

    The numbers are learned as they are, so they should be neither huge nor tiny: scale prices to thousands.
    The input is that of ``classification``.

    Equation: (y - w · pool(encoder(x)) - b)²
    Paper: Devlin et al., 2018, sec. 4.1 (STS-B)
    When: texts have grades or scores, with an order and distances that matter
    Recipe: task: regression
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "pearson", "spearman")
    problem_type: ProblemType = "regression"

    iter_texts = staticmethod(ClassificationTask.iter_texts)

    def __init__(self, *, token_dropout: Decay = 0.0) -> None: ...

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column, or for label smoothing."""
        if recipe.train.label_smoothing:
            raise UserError(
                "train.label_smoothing has no effect on numbers: remove it from task 'regression'"
            )
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @staticmethod
    def read_classes(recipe: Recipe) -> tuple[str, ...]:
        """The name of the number: that of its column."""
        return (str(recipe.data.label),)

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @staticmethod
    def open_with_labels(
        labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``, with the known name of the number."""
        stores = open_labeled_stores(recipe, labels, tokenizer, report)
        numbers = stores["train"].arrays["numbers"]
        if numbers.min() == numbers.max():
            raise UserError(
                f"{stores['train'].report.source_label}: every text has the number {numbers[0]:g}; there is "
                "nothing to learn"
            )
        low, high, mean = (f"{value:.6g}" for value in (numbers.min(), numbers.max(), numbers.mean()))
        report.info(tr("numbers from {low} to {high}, mean {mean}", low=low, high=high, mean=mean))
        options = recipe.task.options
        return make_objective_task(Regression(), stores, labels, recipe, tokenizer, report, **options)


def make_objective_task(
    objective: Objective,
    stores: dict[str, LabeledStore],
    labels: Sequence[str],
    recipe: Recipe,
    tokenizer: Tokenizer,
    report: Reporter,
    kind: type[ClassificationTask] = ClassificationTask,
    **options: Any,
) -> ClassificationTask:
    """The task of opened texts, after a warning of texts that the training text has too."""
    task = kind(stores, labels, tokenizer, recipe.train, objective, **options)
    training_texts = stores["train"].hash_texts()
    for split in [split for split in stores if split != "train"]:
        lines = stores[split].line_numbers.tolist()
        warn_learned_texts(split, stores[split].hash_texts(), lines, training_texts, report)
    report.info(task.make_sampler(task.train).describe())
    return task
