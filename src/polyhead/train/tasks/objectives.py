"""What tasks over whole texts learn: the labels, the loss, the measures and the baselines of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from polyhead.config.model import QUESTION_ANSWERING, SINGLE_LABEL, TOKEN_LABELS, ProblemType
from polyhead.data.readers.spans import OUTSIDE
from polyhead.evaluate.answering import answer_baselines
from polyhead.evaluate.baselines import (
    Baselines,
    TrainingCounts,
    class_baselines,
    multi_label_baselines,
    number_baselines,
    tag_baselines,
)
from polyhead.evaluate.classify import class_measures
from polyhead.evaluate.tagging import tag_measures
from polyhead.evaluate.text_numbers import Numbers, multi_label_measures, number_measures
from polyhead.nn.loss import (
    IGNORE_INDEX,
    Loss,
    classification_loss,
    multi_label_loss,
    span_loss,
    squared_error,
)


class Objective(Protocol):
    """What is learned for each text."""

    problem_type: ProblemType
    title: str  # of the run's README.md
    usage: str  # example command that uses the run

    def dummy_labels(self, n_labels: int) -> Tensor:
        """Labels of a row that has no loss."""
        ...

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        """The sum over the rows with labels; ``host`` are the labels on the CPU."""
        ...

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        """Measures of logits (N, L) besides the loss."""
        ...

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        """Counts of the training text for the baselines."""
        ...

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        """Scores of trivial predictions."""
        ...


class SingleLabel:
    """One label per text; ``weights`` (L,) and ``gamma`` as in ``classification_loss``."""

    problem_type: ProblemType = SINGLE_LABEL
    title = "A classifier"
    usage = "polyhead classify . input.txt"

    def __init__(self, weights: Tensor | None = None, gamma: float = 0.0) -> None:
        self.weights, self.gamma = weights, gamma

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([IGNORE_INDEX])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return classification_loss(logits, labels, smoothing, host, self.weights, self.gamma)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return class_measures(logits.argmax(1), targets, labels)

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        counts = np.bincount(targets.astype(np.int64), minlength=len(labels)).tolist()
        return TrainingCounts(labels=dict(zip(labels, counts, strict=True)))

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return class_baselines(counts.labels, targets, labels)


class Tagging(SingleLabel):
    """A tag for each word; the targets are those of ``tag_measures``."""

    problem_type: ProblemType = TOKEN_LABELS
    title = "A token classifier"
    usage = "polyhead tag . input.txt"

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([[IGNORE_INDEX]])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        host = None if host is None else host.flatten()
        return super().loss(logits.flatten(0, 1), labels.flatten(), smoothing, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return tag_measures(logits.argmax(1), targets, labels)

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        tags, words = targets[:, 0], dict[int, str]()
        hashes, inverse = np.unique(targets[:, 2], return_inverse=True)
        counts = np.zeros((len(hashes), len(labels)), dtype=np.int64)
        np.add.at(counts, (inverse, tags), 1)
        for word, best in zip(hashes.tolist(), counts.argmax(1).tolist(), strict=True):
            words |= {word: labels[best]} if labels[best] != OUTSIDE else {}
        return TrainingCounts(labels=super().count(tags, labels).labels, words=words)

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return tag_baselines(counts, targets, labels)


class SpanExtraction(SingleLabel):
    """An answer in a context; labels are those of ``label_answer``, targets of baselines the examples."""

    problem_type: ProblemType = QUESTION_ANSWERING
    title = "A question answerer"
    usage = 'polyhead answer . "Who ...?" --context input.txt'

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.tensor([[IGNORE_INDEX]])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return span_loss(logits, labels, host)

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        return TrainingCounts(texts=len(targets))

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return answer_baselines(targets)


class MultiLabel:
    """Any number of labels per text; one is predicted from ``threshold``."""

    problem_type: ProblemType = "multi_label_classification"
    title = "A classifier with several labels per text"
    usage = "polyhead classify . input.txt"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.full((1, n_labels), torch.nan)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return multi_label_loss(logits, labels, smoothing, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return multi_label_measures(1 / (1 + np.exp(-logits)), targets, self.threshold)

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        counts = targets.sum(0).astype(int).tolist()
        return TrainingCounts(labels=dict(zip(labels, counts, strict=True)), texts=len(targets))

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return multi_label_baselines(counts, targets, labels)


class Regression:
    """A number per text."""

    problem_type: ProblemType = "regression"
    title = "A model of numbers"
    usage = "polyhead classify . input.txt"

    def dummy_labels(self, n_labels: int) -> Tensor:
        return torch.full((1, 1), torch.nan)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        return squared_error(logits, labels, host)

    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        return number_measures(logits[:, 0], targets[:, 0])

    def count(self, targets: Any, labels: Sequence[str]) -> TrainingCounts:
        return TrainingCounts(texts=len(targets), mean=float(targets.mean()))

    def baselines(self, counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        return number_baselines(counts, targets)


def make_objective(problem_type: ProblemType, threshold: float) -> Objective:
    """The objective of a model, whose labels are predicted from ``threshold`` if a text has several."""
    per_token: tuple[Objective, ...] = Tagging(), SpanExtraction()
    objectives = SingleLabel(), *per_token, MultiLabel(threshold), Regression()
    return next(objective for objective in objectives if objective.problem_type == problem_type)
