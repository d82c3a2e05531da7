"""Several labels per text, and a number per text: classification with another objective."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.config.model import ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import count_multi_labels
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.classification import open_split_labeled, report_labels
from polyhead.train.tasks.labeled_task import LabeledTask
from polyhead.train.tasks.objectives import MultiLabel, Objective, Regression


@TASK.register("multi-label")
class MultiLabelTask(LabeledTask):
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

    metrics = ("loss", "micro_f1", "f1", "accuracy")
    problem_type: ProblemType = "multi_label_classification"

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """All labels of the training text."""
        return tuple(count_multi_labels(open_split_labeled(recipe, "train")))

    @classmethod
    def make_objective(
        cls, train: LabeledStore, labels: Sequence[str], recipe: Recipe, report: Reporter
    ) -> Objective:
        """The loss of several labels."""
        report_labels(train, labels, report)
        return MultiLabel(recipe.generation.threshold)


@TASK.register("regression")
class RegressionTask(LabeledTask):
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

    metrics = ("loss", "pearson", "spearman")
    problem_type: ProblemType = "regression"

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The name of the number: that of its column."""
        return (str(recipe.data.label),)

    @classmethod
    def make_objective(
        cls, train: LabeledStore, labels: Sequence[str], recipe: Recipe, report: Reporter
    ) -> Objective:
        """The squared error, if the numbers differ."""
        numbers = train.arrays["numbers"]
        if numbers.min() == numbers.max():
            raise UserError(
                f"{train.report.source_label}: every text has the number {numbers[0]:g}; there is nothing "
                "to learn"
            )
        low, high, mean = (f"{value:.6g}" for value in (numbers.min(), numbers.max(), numbers.mean()))
        report.info(tr("numbers from {low} to {high}, mean {mean}", low=low, high=high, mean=mean))
        return Regression()
