"""Token classification: labeled spans of texts, such as names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polyhead.config.model import TOKEN_LABELS, ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.option_types import Decay, PositiveFloat
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import count_multi_labels, describe_similar_labels
from polyhead.data.readers.spans import OUTSIDE
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.classification import ClassificationTask, open_split_labeled, weigh_classes
from polyhead.train.tasks.labeled_task import LabeledTask
from polyhead.train.tasks.objectives import Objective, Tagging


@TASK.register("token-classification")
class TokenClassificationTask(LabeledTask):
    """Each word has a tag: B- and a label at the start of a span, I- inside of it, O outside.

    The text is CoNLL (a word and its tag per line, a blank line between sentences; IOB1, BIO or BIOES) or
    JSONL with a text and, in ``data.label``, its spans: start, end and label, in characters. The tag of a
    word is learned at its first token; a long text is read in windows that overlap, and each word is labeled
    where it has most context.

    Equation: -1/N Σ_i w_y (1 - p(y_i | x))^gamma log p(y_i | x),  p = softmax(W encoder(x)_i + b)
    Paper: Devlin et al., 2018, sec. 5.3; Ramshaw & Marcus, 1995 (tags); Lin et al., 2017 (focal)
    When: names, dates, products or terms are to be found in texts
    Recipe: task: token-classification
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
      class_weights: weights w of the tags, as in task classification
      loss: cross_entropy (gamma = 0), or focal, which reduces the loss of words that are easy already
      focal_gamma: exponent gamma of the focal loss
    """

    metrics = ("loss", "micro_f1", "f1", "accuracy")
    problem_type: ProblemType = TOKEN_LABELS

    def __init__(
        self,
        *,
        token_dropout: Decay = 0.0,
        class_weights: Literal["none", "balanced"] | dict[str, PositiveFloat] = "none",
        loss: Literal["cross_entropy", "focal"] = "cross_entropy",
        focal_gamma: PositiveFloat = 2.0,
    ) -> None: ...

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """As ``LabeledTask.check``, and for pairs of texts."""
        if len(recipe.data.text) > 1:
            raise UserError("task 'token-classification' labels single texts: data.text must be one column")
        super().check(recipe)

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The tags of all labels of the training text."""
        labels = count_multi_labels(open_split_labeled(recipe, "train"))
        return (OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BI"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task, after a report of the spans of the training text."""
        counts = count_multi_labels(open_split_labeled(recipe, "train"))
        spans = ", ".join(
            tr("{label}: {count:,} spans", label=label, count=count) for label, count in counts.items()
        )
        report.info(tr("{count} classes: {labels}", count=len(counts), labels=spans))
        if warning := describe_similar_labels(counts):
            report.info(tr("warning: {message}", message=warning))
        return super().open(recipe, tokenizer, report)

    @classmethod
    def make_objective(
        cls, train: LabeledStore, labels: Sequence[str], recipe: Recipe, report: Reporter
    ) -> Objective:
        """The loss of the tags, with the weights of the classes."""
        options, tags = recipe.task.options, train.labels
        weights = weigh_classes(options["class_weights"], tags[tags != IGNORE_INDEX], labels)
        return Tagging(weights, options["focal_gamma"] if options["loss"] == "focal" else 0.0)
