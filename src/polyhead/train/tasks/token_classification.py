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
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.classification import (
    ClassificationTask,
    open_labeled_stores,
    open_split_labeled,
    weigh_classes,
)
from polyhead.train.tasks.objectives import Tagging
from polyhead.train.tasks.text_labels import make_objective_task


@TASK.register("token-classification")
class TokenClassificationTask:
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

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "micro_f1", "f1", "accuracy")
    problem_type: ProblemType = TOKEN_LABELS

    iter_texts = staticmethod(ClassificationTask.iter_texts)

    def __init__(
        self,
        *,
        token_dropout: Decay = 0.0,
        class_weights: Literal["none", "balanced"] | dict[str, PositiveFloat] = "none",
        loss: Literal["cross_entropy", "focal"] = "cross_entropy",
        focal_gamma: PositiveFloat = 2.0,
    ) -> None: ...

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column, or for pairs of texts."""
        if len(recipe.data.text) > 1:
            raise UserError("task 'token-classification' labels single texts: data.text must be one column")
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @staticmethod
    def read_classes(recipe: Recipe) -> tuple[str, ...]:
        """The tags of all labels of the training text."""
        labels = count_multi_labels(open_split_labeled(recipe, "train"))
        return (OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BI"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        counts = count_multi_labels(open_split_labeled(recipe, "train"))
        spans = ", ".join(
            tr("{label}: {count:,} spans", label=label, count=count) for label, count in counts.items()
        )
        report.info(tr("{count} classes: {labels}", count=len(counts), labels=spans))
        if warning := describe_similar_labels(counts):
            report.info(tr("warning: {message}", message=warning))
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @staticmethod
    def open_with_labels(
        labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``, with known tags."""
        options = dict(recipe.task.options)
        stores = open_labeled_stores(recipe, labels, tokenizer, report)
        tags = stores["train"].labels
        weights = weigh_classes(options.pop("class_weights"), tags[tags != IGNORE_INDEX], labels)
        gamma = options.pop("focal_gamma")
        objective = Tagging(weights, gamma if options.pop("loss") == "focal" else 0.0)
        return make_objective_task(objective, stores, labels, recipe, tokenizer, report, **options)
