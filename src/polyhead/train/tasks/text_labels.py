"""The tasks on texts with labels: classes, several labels, numbers, spans, and answers to questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.model import ANSWER_LABELS, QUESTION_ANSWERING, SINGLE_LABEL, TOKEN_LABELS, ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.core.option_types import Decay, PositiveFloat
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import (
    LabeledExample,
    LabelKind,
    count_labels,
    count_multi_labels,
    describe_ambiguous_texts,
    describe_single_class,
    read_labeled,
)
from polyhead.data.readers.rows import iter_chunks
from polyhead.data.readers.spans import OUTSIDE
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.evaluate.answering import (
    answer_baselines,
    answer_measures,
    answer_questions,
    measure_answers,
)
from polyhead.evaluate.baselines import (
    Baselines,
    TrainingCounts,
    class_baselines,
    multi_label_baselines,
    number_baselines,
    tag_baselines,
)
from polyhead.evaluate.classify import class_measures, measure_classes, measure_labels, measure_numbers
from polyhead.evaluate.tagging import measure_tags, tag_measures
from polyhead.evaluate.text_numbers import Numbers, multi_label_measures, number_measures
from polyhead.models import QuestionAnswerer
from polyhead.nn.loss import (
    IGNORE_INDEX,
    Loss,
    classification_loss,
    multi_label_loss,
    span_loss,
    squared_error,
)
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.classification import (
    ClassificationBatch,
    LabeledTask,
    LabeledTextTask,
    count_classes,
    open_split_labeled,
    report_classes,
)

_CHUNK = 32  # questions that are answered together
ClassWeights = Literal["none", "balanced"] | dict[str, PositiveFloat]
LossName = Literal["cross_entropy", "focal"]


@TASK.register("classification")
class ClassificationTask(LabeledTask):
    """Each text, or pair of texts, has one label; the classes are those of the training text.

    Texts are enclosed in the special tokens ``<s>`` and ``</s>``; a second text follows the first, as a
    second segment if the model has segments. Texts with more than ``data.max_len`` tokens are truncated.

    Equation: -w_y (1 - p(y | x))^gamma log p(y | x),  p = softmax(W pool(encoder(x)) + b)
    Paper: Devlin et al., 2018, sec. 4.1; token_dropout: Iyyer et al., 2015, sec. 3.2; focal: Lin et al.,
      2017; calibrate: Guo et al., 2017, sec. 4.2
    When: texts are to be classified: sentiment, topic, type of question, entailment between two texts
    Recipe: task: {name: classification, token_dropout: 0.1}
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
      class_weights: weights w of the classes in the training loss: none, balanced (inversely proportional to
        the number of texts), or a weight by label, 1 for a label that is not named
      loss: cross_entropy (gamma = 0), or focal, which reduces the loss of texts that are easy already
      focal_gamma: exponent gamma of the focal loss
      calibrate: after training, divide the logits by the temperature that minimizes the loss of the
        validation text; the classes stay the same, their probabilities become more honest
    """

    metrics = ("loss", "accuracy", "f1", "mcc")
    problem_type: ProblemType = SINGLE_LABEL
    label_kind: LabelKind = "class"
    title = "A classifier"
    measure_run = staticmethod(measure_classes)
    compute_logits = LabeledTextTask.compute_logits  # a teacher can be distilled

    def __init__(
        self,
        *,
        token_dropout: float = 0.0,
        class_weights: ClassWeights = "none",
        loss: LossName = "cross_entropy",
        focal_gamma: PositiveFloat = 2.0,
        calibrate: bool = False,
    ) -> None:
        super().__init__(token_dropout=token_dropout)
        self.class_weights, self.gamma = class_weights, focal_gamma if loss == "focal" else 0.0
        self.weights: Tensor | None = None
        self.calibrate = calibrate

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([IGNORE_INDEX])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return classification_loss(logits, labels, smoothing, host, self.weights, self.gamma)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return class_measures(logits.argmax(1), targets, labels)

    @staticmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        return TrainingCounts(labels=count_classes(targets, labels))

    @staticmethod
    def baselines(counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return class_baselines(counts.labels, targets, labels)

    def prepare(self, train: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
        super().prepare(train, labels, report)
        self.weights = weigh_classes(self.class_weights, train.labels, labels)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """As ``LabeledTask.check``, and for options out of range or without effect."""
        options = recipe.task.options
        if not 0 <= options["token_dropout"] < 1:
            raise UserError(
                "token_dropout of task 'classification' must be a fraction from 0 to below 1, not "
                f"{options['token_dropout']}"
            )
        if recipe.distill and (options["class_weights"] != "none" or options["loss"] == "focal"):
            raise UserError(
                "distill has its own loss: remove class_weights and loss of task 'classification'"
            )
        super().check(recipe)

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """All labels of the training text."""
        return tuple(count_labels(open_split_labeled(recipe, "train")))

    def list_warnings(
        self, split: str, store: LabeledStore, texts: Sequence[int], labels: Sequence[str]
    ) -> list[str]:
        """Warnings of texts with several labels, and of one label for all texts of a split."""
        lines, numbers = store.line_numbers.tolist(), store.labels.tolist()
        ambiguous = describe_ambiguous_texts(texts, numbers, lines, tr(split))
        names = (labels[i] for i in set(numbers))
        return [ambiguous, "" if split == "train" else describe_single_class(names, split)]


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
    label_kind: LabelKind = "labels"
    title = "A classifier with several labels per text"
    measure_run, baselines = staticmethod(measure_labels), staticmethod(multi_label_baselines)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return multi_label_loss(logits, labels, smoothing, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return multi_label_measures(1 / (1 + np.exp(-logits)), targets, self.threshold)

    @staticmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        counts = targets.sum(0).astype(int).tolist()
        return TrainingCounts(labels=dict(zip(labels, counts, strict=True)), texts=len(targets))

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """All labels of the training text."""
        return tuple(count_multi_labels(open_split_labeled(recipe, "train")))


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
    label_kind: LabelKind = "number"
    title = "A model of numbers"
    measure_run = staticmethod(measure_numbers)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return squared_error(logits, labels, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return number_measures(logits[:, 0], targets[:, 0])

    @staticmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        return TrainingCounts(texts=len(targets), mean=float(targets.mean()))

    @staticmethod
    def baselines(counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return number_baselines(counts, targets)

    def prepare(self, train: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
        """Report the numbers; a UserError if all are the same."""
        numbers = train.arrays["numbers"]
        if numbers.min() == numbers.max():
            raise UserError(
                f"{train.report.source_label}: every text has the number {numbers[0]:g}; there is nothing "
                "to learn"
            )
        low, high, mean = (f"{value:.6g}" for value in (numbers.min(), numbers.max(), numbers.mean()))
        report.info(tr("numbers from {low} to {high}, mean {mean}", low=low, high=high, mean=mean))

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The name of the number: that of its column."""
        return (str(recipe.data.label),)


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
    label_kind: LabelKind = "spans"
    title, usage = "A token classifier", "polyhead tag . input.txt"
    measure_run, baselines = staticmethod(measure_tags), staticmethod(tag_baselines)

    def __init__(
        self,
        *,
        token_dropout: Decay = 0.0,
        class_weights: ClassWeights = "none",
        loss: LossName = "cross_entropy",
        focal_gamma: PositiveFloat = 2.0,
    ) -> None:
        super().__init__(token_dropout=token_dropout)
        self.class_weights, self.gamma = class_weights, focal_gamma if loss == "focal" else 0.0
        self.weights: Tensor | None = None

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([[IGNORE_INDEX]])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        rows = logits.flatten(0, 1), labels.flatten(), smoothing, None if host is None else host.flatten()
        return classification_loss(*rows, self.weights, self.gamma)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return tag_measures(logits.argmax(1), targets, labels)

    @staticmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        tags, words = targets[:, 0], dict[int, str]()
        hashes, inverse = np.unique(targets[:, 2], return_inverse=True)
        counts = np.zeros((len(hashes), len(labels)), dtype=np.int64)
        np.add.at(counts, (inverse, tags), 1)
        for word, best in zip(hashes.tolist(), counts.argmax(1).tolist(), strict=True):
            words |= {word: labels[best]} if labels[best] != OUTSIDE else {}
        return TrainingCounts(labels=count_classes(tags, labels), words=words)

    def prepare(self, train: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
        tags = train.labels[train.labels != IGNORE_INDEX]
        self.weights = weigh_classes(self.class_weights, tags, labels)

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
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LabeledTextTask:
        """Open the task, after a report of the spans of the training text."""
        counts = count_multi_labels(open_split_labeled(recipe, "train"))
        spans = ", ".join(
            tr("{label}: {count:,} spans", label=label, count=count) for label, count in counts.items()
        )
        report_classes(counts, spans, report)
        return super().open(recipe, tokenizer, report)


class AnswerTask(LabeledTextTask):
    """An opened task, evaluated by its answers rather than by windows."""

    def __init__(
        self,
        stores: Mapping[str, LabeledStore],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        recipe: Recipe,
        objective: LabeledTask,
    ) -> None:
        super().__init__(stores, labels, tokenizer, recipe, objective)
        self.max_len, splits = min(recipe.data.max_len, recipe.model.max_len), recipe.data.splits[1:]
        self.examples = {split: read_labeled(open_split_labeled(recipe, split))[0] for split in splits}

    def count_labels(self, batch: ClassificationBatch) -> int:
        """Number of windows."""
        return int((batch.labels > 0).any(1).sum())

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, and F1 and exact match by the rules of SQuAD."""
        assert isinstance(model, QuestionAnswerer)
        examples = self.examples[split]

        def answer_chunk(chunk: list[LabeledExample]) -> list[tuple[str, float]]:
            limits = self.max_len, self.config.max_tokens
            outputs = answer_questions(model, self.tokenizer, chunk, *limits)
            return [(answer.answer, loss) for answer, loss in outputs]

        rows = [row for part in map_fn(answer_chunk, [*iter_chunks(examples, _CHUNK)]) for row in part]
        answers, nll = zip(*rows, strict=True)
        return {"loss": sum(nll) / len(nll)} | answer_measures(answers, examples)

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """No answer, or a sentence like the question."""
        return self.objective.baselines(counts, self.examples[split], self.labels)


@TASK.register("question-answering")
class QuestionAnsweringTask(LabeledTask):
    """The answer to a question is a span of a context, or there is none.

    The text is SQuAD's JSON, or JSONL with ``data.text`` [question, context] and ``data.label`` answers:
    {"question": "Who wrote it?", "context": "Ann wrote it.", "answers": [{"text": "Ann", "start": 0}]}. The
    start is in characters; a question without an answer has an empty list. Of several answers the first is
    learned. A long context is read in windows that overlap, each after the question.

    Equation: -1/2 [log p_start(i | q, c) + log p_end(j | q, c)],  p = softmax over the tokens of c, and the
      first token if there is no answer
    Paper: Devlin et al., 2018, sec. 4.2, 4.3; Rajpurkar et al., 2016, 2018 (data, F1 and exact match)
    When: questions are to be answered with the words of a given text
    Recipe: task: question-answering
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
    """

    metrics = ("loss", "f1", "exact_match")
    problem_type: ProblemType = QUESTION_ANSWERING
    label_kind: LabelKind = "answers"
    title, usage = "A question answerer", 'polyhead answer . "Who ...?" --context input.txt'
    measure_run = staticmethod(measure_answers)
    opened_type = AnswerTask

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([[IGNORE_INDEX]])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return span_loss(logits, labels, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        raise AssertionError("answers are measured, not logits")

    @staticmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        return TrainingCounts(texts=len(targets))

    @staticmethod
    def baselines(counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return answer_baselines(targets)

    def prepare(self, train: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
        """Nothing: there are no classes."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """As ``LabeledTask.check``; a table needs a column of questions and one of contexts."""
        super().check(recipe)
        if len(recipe.data.text) != 2 and any(
            open_split_labeled(recipe, split).format != "squad" for split in recipe.data.splits
        ):
            raise UserError(
                "task 'question-answering' reads two columns: data.text=[question, context], "
                "data.label=answers"
            )

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The outputs for each token."""
        return ANSWER_LABELS


def weigh_classes(
    choice: str | Mapping[str, float], targets: IdArray, labels: Sequence[str]
) -> Tensor | None:
    """The weight of each class: (L,); None if all are 1. The mean over the training texts is 1."""
    counts = np.bincount(targets, minlength=len(labels))
    if choice == "none":
        return None
    if isinstance(choice, Mapping):
        for label in choice:
            if label not in labels:
                raise unknown_name_error("label in class_weights", label, labels)
        weights = np.array([choice.get(label, 1.0) for label in labels])
        weights *= counts.sum() / (counts @ weights)
    else:
        weights = counts.sum() / (len(counts) * np.maximum(counts, 1))
    return torch.tensor(weights, dtype=torch.float32)
