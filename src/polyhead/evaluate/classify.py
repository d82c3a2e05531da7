"""Classify texts with a trained classifier, and measure it on labelled texts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError, format_value
from polyhead.core.i18n import tr
from polyhead.data.batching.encoder_inputs import encode_texts
from polyhead.data.readers.labeled import LabeledExample
from polyhead.evaluate.embed import token_limit
from polyhead.evaluate.encode_batches import iter_batches
from polyhead.evaluate.text_numbers import best_threshold, multi_label_measures, number_measures
from polyhead.generation.engine.request import require_finite
from polyhead.models import Classifier
from polyhead.tokenizers.input_validation import validate_list
from polyhead.tokenizers.tokenizer import Tokenizer

ConfusionCounts = NDArray[np.int64]
MAX_MATRIX_CLASSES = 12  # classes of a confusion matrix that is shown; of more, the most frequent confusions


def confusion_matrix(predictions: ArrayLike, references: ArrayLike, n_labels: int) -> ConfusionCounts:
    """Confusion matrix (L, L): how often class i (row, the reference) was predicted as class j (column)."""
    predictions, references = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
    if predictions.shape != references.shape:
        raise UserError(
            f"{predictions.size} predicted classes and {references.size} references: expected equally many"
        )
    if not predictions.size:
        raise UserError("nothing to evaluate: no texts")
    counts: ConfusionCounts = np.bincount(
        references * n_labels + predictions, minlength=n_labels * n_labels
    ).reshape(n_labels, n_labels)
    return counts


def list_confusions(counts: ConfusionCounts, limit: int = 10) -> list[tuple[int, int, int]]:
    """The most frequent confusions, as (class, predicted class, number of texts), the first ones first."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:limit]
    pairs = [divmod(int(i), len(counts)) for i in order]
    return [(i, j, int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def accuracy(counts: ConfusionCounts) -> float:
    """The fraction of texts whose class is right."""
    return float(np.trace(counts) / counts.sum())


def per_class_f1(counts: ConfusionCounts) -> NDArray[Any]:
    """F1 of each class, 2 TP / (2 TP + FP + FN) (van Rijsbergen, 1979): (L,); 0 without true positives."""
    right = np.diag(counts)
    denominator = counts.sum(0) + counts.sum(1)  # 2 TP + FP + FN
    return np.where(denominator > 0, 2 * right / np.maximum(denominator, 1), 0.0)


def macro_f1(counts: ConfusionCounts) -> float:
    """The mean F1 of the classes in references or predictions: rare ones count as much as frequent ones."""
    occurs = counts.sum(0) + counts.sum(1) > 0
    return float(per_class_f1(counts)[occurs].mean())


def matthews_corrcoef(counts: ConfusionCounts) -> float:
    """Matthews correlation of predictions and references, for any number of classes (Gorodkin, 2004, eq. 8).

    1: all right; 0: no better than chance, also if predictions or references have one class only.
    """
    c = counts.astype(np.float64)
    total, n_correct, reference_counts, predicted_counts = c.sum(), np.trace(c), c.sum(1), c.sum(0)
    spread = (total**2 - predicted_counts @ predicted_counts) * (
        total**2 - reference_counts @ reference_counts
    )
    covariance = n_correct * total - reference_counts @ predicted_counts
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def class_measures(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Accuracy, macro F1, Matthews correlation; with two classes the F1 of the second, as ``f1_LABEL``."""
    counts = confusion_matrix(predictions, references, len(labels))
    measures = {"accuracy": accuracy(counts), "f1": macro_f1(counts), "mcc": matthews_corrcoef(counts)}
    if len(labels) == 2:
        measures[f"f1_{labels[1]}"] = float(per_class_f1(counts)[1])
    return measures


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the probabilities of each row of logits: (N, L) -> (N, L)."""
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def calibration_error(log_p: NDArray[np.float64], references: ArrayLike, n_bins: int = 15) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy (Guo et al., 2017, eq. 3).

    Texts are grouped into bins of equal width by the probability of their most likely class; ``log_p`` has
    the log-probabilities (N, L), ``references`` the classes (N,).
    """
    confidence, is_correct = np.exp(log_p.max(1)), log_p.argmax(1) == np.asarray(references)
    bins = np.minimum(np.ceil(confidence * n_bins), n_bins).astype(np.int64)
    gaps = np.bincount(bins, is_correct - confidence)
    return float(np.abs(gaps).sum() / len(bins))


def fit_temperature(logits: NDArray[np.float64], references: ArrayLike) -> float:
    """The temperature from 0.05 to 20 with the lowest mean -log p of the references (Guo et al., 2017).

    logits (N, L), references (N,). The loss is convex in 1/T, so the sign of its slope shows the direction.
    """
    label_logits = np.take_along_axis(logits, np.asarray(references)[:, None], 1)[:, 0]
    low, high = math.log(0.05), math.log(20.0)
    for _ in range(50):
        middle = (low + high) / 2
        expected = (np.exp(log_softmax(logits / math.exp(middle))) * logits).sum(1)
        if float((expected - label_logits).mean()) > 0:  # too certain
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


TextsOrPairs = Sequence[str] | Sequence[tuple[str, str]]
Examples = Sequence[LabeledExample]
ClassifierEnsemble = Sequence[tuple[Classifier, Tokenizer]]
"""Classifiers with the same classes, whose probabilities are averaged."""


class ClassPrediction(NamedTuple):
    """The most likely class of a text, and the probabilities of all, in the order of the model's labels.

    A model with one label ranks, or outputs a number: it has a score in place of a probability. With several
    labels per text, ``labels`` are those that are predicted, and ``label`` is the most likely one of all.
    """

    label: str
    probabilities: dict[str, float]
    labels: tuple[str, ...] = ()


class ClassPredictions(NamedTuple):
    """The class of each text, the number of truncated texts, and the token limit."""

    predictions: list[ClassPrediction]
    n_truncated: int
    max_tokens: int


class HardText(NamedTuple):
    """A text whose label has a low probability."""

    example: LabeledExample
    prediction: str
    probability: float  # of the label, or labels; of a number, its distance


class ClassScores(NamedTuple):
    """Metrics of a classifier on labelled texts."""

    measures: dict[str, float]  # loss in nats, accuracy, f1, mcc, ece
    # class (N,), labels as 0 or 1 (N, L), number (N, 1), of ``tag_measures`` (N, 3), or the examples
    targets: Any
    predictions: list[str]  # predicted label of each text
    confusion: ConfusionCounts | None  # (L, L)
    hardest: list[HardText]  # all texts, those with the least probable labels first
    n_truncated: int  # number of truncated texts
    max_tokens: int  # token limit of a text
    remarks: Mapping[str, str]  # on the measures


def rank_by_difficulty(
    examples: Examples, predictions: Sequence[str], log_p: NDArray[np.float64]
) -> list[HardText]:
    """The texts in the order of the log-probabilities of their labels: (N,)."""
    order = np.argsort(log_p, kind="stable").tolist()
    return [HardText(examples[i], predictions[i], math.exp(log_p[i])) for i in order]


def classify(
    classifiers: ClassifierEnsemble, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> ClassPredictions:
    """The class of each text, or pair of texts; texts longer than ``token_limit`` are truncated."""
    labels, max_tokens = classifiers[0][0].config.labels, _token_limit(classifiers, config)
    has_several = classifiers[0][0].config.problem_type == "multi_label_classification"
    if has_several:
        values, n_truncated = label_probabilities(classifiers, texts, config, batch_tokens)
    elif len(labels) == 1:
        values, n_truncated = _score_texts(classifiers, texts, config, batch_tokens)
    else:
        values, n_truncated = class_log_probs(classifiers, texts, config, batch_tokens)
    rows = values if has_several or len(labels) == 1 else np.exp(values)
    predictions = []
    for best, row in zip(values.argmax(1).tolist(), rows.tolist(), strict=True):
        probabilities = dict(zip(labels, row, strict=True))
        predicted = tuple(k for k, p in probabilities.items() if p >= config.threshold) if has_several else ()
        predictions.append(ClassPrediction(labels[best], probabilities, predicted))
    return ClassPredictions(predictions, n_truncated, max_tokens)


def check_text_arity(texts: TextsOrPairs, n_texts: int) -> None:
    """Raise a UserError unless all texts are single, or all are pairs, as the classifier needs.

    ``n_texts`` is 1 or 2, or 0 if it is not known: then the first text tells.
    """
    validate_list(texts, "run.classify")
    counts = []
    for number, text in enumerate(texts, 1):
        is_pair = isinstance(text, Collection) and not isinstance(text, str | set | frozenset | Mapping)
        parts: list[Any] = [*text] if is_pair else [text]
        for part in parts:
            if not isinstance(part, str):
                raise UserError(
                    f"text {number} is {type(part).__name__}, expected a string or a pair of strings"
                )
        if is_pair and len(parts) != 2:
            raise UserError(f"text {number} has {len(parts)} parts, expected a pair of texts")
        counts.append(len(parts))
    arity = n_texts or max(counts[:1], default=1)
    for number, (text, count) in enumerate(zip(texts, counts, strict=True), 1):
        if count != arity and number == 1:
            input_kind = "pairs of texts" if count == 2 else "single texts"
            expected_input = "a text or a list of texts" if count == 2 else 'a list of pairs, ["a", "b"]'
            raise UserError(f"{input_kind}; expected {expected_input}, as in the run's training")
        if count != arity:
            expected = "one text" if count == 2 else "a pair of texts"
            raise UserError(f"text {number} is {format_value(text)}, expected {expected}")


def measure_classes(
    classifiers: ClassifierEnsemble, examples: Examples, config: GenerationConfig, batch_tokens: int
) -> ClassScores:
    """Loss, accuracy, macro F1, Matthews correlation on labelled texts; an unknown label is a UserError."""
    labels = classifiers[0][0].config.labels
    if len(labels) == 1:
        raise UserError(
            "this model outputs a number per text, not a class, so accuracy is undefined; use "
            "classify for the numbers"
        )
    numbers = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise UserError(
                f"line {example.line}: the model has no class {example.label!r}; it has {', '.join(labels)}"
            )
    targets = np.array([numbers[example.label] for example in examples], dtype=np.int64)
    log_p, n_truncated = class_log_probs(classifiers, _example_texts(examples), config, batch_tokens)
    predicted, label_log_p = log_p.argmax(1), log_p[np.arange(len(targets)), targets]
    loss = -float(label_log_p.mean()) if len(targets) else math.nan
    measures = {"loss": loss} | class_measures(predicted, targets, labels)
    measures["ece"] = calibration_error(log_p, targets)
    predictions = [labels[i] for i in predicted]
    confusion = confusion_matrix(predicted, targets, len(labels))
    hardest = rank_by_difficulty(examples, predictions, label_log_p)
    limit = _token_limit(classifiers, config)
    remarks = {
        "loss": tr("nats per text"),
        "accuracy": tr("fraction of {count:,} texts with the correct class", count=len(examples)),
        "f1": tr("mean F1 of {count} classes", count=len(labels)),
        "mcc": tr("Matthews correlation"),
        "ece": tr("expected calibration error: mean distance of probability and accuracy"),
        f"f1_{labels[-1]}": tr("F1 of class {label}", label=labels[-1]),
    }
    return ClassScores(measures, targets, predictions, confusion, hardest, n_truncated, limit, remarks)


def measure_labels(
    classifiers: ClassifierEnsemble, examples: Examples, config: GenerationConfig, batch_tokens: int
) -> ClassScores:
    """The measures of a model of several labels per text, with the best threshold for these texts."""
    labels, texts = classifiers[0][0].config.labels, _example_texts(examples)
    p, n_truncated = label_probabilities(classifiers, texts, config, batch_tokens)
    targets = np.array([[label in example.labels for label in labels] for example in examples], dtype=float)
    log_p = np.log(np.maximum(np.where(targets > 0, p, 1 - p), 1e-300))
    measures = {"loss": -float(log_p.mean())} | multi_label_measures(p, targets, config.threshold)
    measures["threshold"] = best_threshold(p, targets)
    predictions = [
        ", ".join(label for label, x in zip(labels, row, strict=True) if x >= config.threshold) for row in p
    ]
    hardest = rank_by_difficulty(examples, predictions, log_p.sum(1))
    limit = _token_limit(classifiers, config)
    remarks = {
        "loss": tr("nats per text and label"),
        "micro_f1": tr("F1 of all labels, from probability {threshold:g}", threshold=config.threshold),
        "threshold": tr("with the highest micro F1 of these texts (generation.threshold)"),
        "accuracy": tr("fraction of {count:,} texts with exactly the right labels", count=len(examples)),
        "f1": tr("mean F1 of {count} classes", count=len(labels)),
    }
    return ClassScores(measures, targets, predictions, None, hardest, n_truncated, limit, remarks)


def measure_numbers(
    classifiers: ClassifierEnsemble, examples: Examples, config: GenerationConfig, batch_tokens: int
) -> ClassScores:
    """Mean squared error and correlations of a model of numbers; the largest errors are the hardest."""
    scores, n_truncated = _score_texts(classifiers, _example_texts(examples), config, batch_tokens)
    predicted, targets = scores[:, 0], np.array([example.number for example in examples])
    predictions, errors = [f"{score:.6g}" for score in predicted], (predicted - targets) ** 2
    measures = {"loss": float(errors.mean())} | number_measures(predicted, targets)
    order = np.argsort(-errors, kind="stable").tolist()
    hardest = [HardText(examples[i], predictions[i], math.sqrt(errors[i])) for i in order]
    limit = _token_limit(classifiers, config)
    remarks = {
        "loss": tr("mean squared error of {count:,} texts", count=len(examples)),
        "pearson": tr("Pearson correlation"),
        "spearman": tr("Spearman correlation, of the ranks"),
    }
    return ClassScores(measures, targets[:, None], predictions, None, hardest, n_truncated, limit, remarks)


def _example_texts(examples: Examples) -> TextsOrPairs:
    """The texts, or pairs of texts, of examples."""
    sides = [example.texts for example in examples]
    if sides and len(sides[0]) > 1:
        return [(first, second) for first, second in sides]
    return [text for (text,) in sides]


def label_probabilities(
    classifiers: ClassifierEnsemble, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> tuple[NDArray[np.float64], int]:
    """The mean probability of each of several labels (N, L), and the number of truncated texts.

    Columns are in the label order of the first classifier.
    """
    logits, n_truncated = _collect_logits(classifiers, texts, config, batch_tokens)
    return logits.sigmoid().mean(0).numpy(), n_truncated


def class_log_probs(
    classifiers: ClassifierEnsemble, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> tuple[NDArray[np.float64], int]:
    """log of the mean probability of each class (N, L), and the number of truncated texts.

    Columns are in the label order of the first classifier.
    """
    logits, n_truncated = _collect_logits(classifiers, texts, config, batch_tokens)
    log_p = logits.log_softmax(-1).numpy()
    return np.logaddexp.reduce(log_p) - math.log(len(classifiers)), n_truncated


def _collect_logits(
    classifiers: ClassifierEnsemble, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> tuple[Tensor, int]:
    """Logits of all classifiers (M, N, L), in the label order of the first one.

    Also the number of truncated texts, the maximum of all classifiers.
    """
    results = [_compute_logits(*classifier, texts, config, batch_tokens) for classifier in classifiers]
    labels = classifiers[0][0].config.labels
    order = [[model.config.labels.index(label) for label in labels] for model, _ in classifiers]
    logits = [logits[:, columns] for (logits, _), columns in zip(results, order, strict=True)]
    return torch.stack(logits), max(n_truncated for _, n_truncated in results)


def _score_texts(
    classifiers: ClassifierEnsemble, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> tuple[NDArray[np.float64], int]:
    """The mean score of each text (N, 1), and the number of truncated texts."""
    scores, n_truncated = _collect_logits(classifiers, texts, config, batch_tokens)
    scores = scores.sigmoid() if config.score_activation == "sigmoid" else scores
    return scores.mean(0).numpy(), n_truncated


def _token_limit(classifiers: ClassifierEnsemble, config: GenerationConfig) -> int:
    """The smallest token limit of the classifiers."""
    return min(token_limit(config, model.config.max_len) for model, _ in classifiers)


@torch.inference_mode()
def _compute_logits(
    model: Classifier, tokenizer: Tokenizer, texts: TextsOrPairs, config: GenerationConfig, batch_tokens: int
) -> tuple[Tensor, int]:
    """Logits (N, L) in double precision, and the number of truncated texts; they must be finite."""
    validate_list(texts, "run.classify")
    rows = encode_texts(texts, tokenizer, token_limit(config, model.config.max_len))
    out = torch.zeros(len(rows), len(model.config.labels), dtype=torch.float64)
    for numbers, inputs in iter_batches(model, rows, tokenizer, batch_tokens):
        out[numbers] = require_finite(model(*inputs)).double().cpu()
    return out, sum(row.truncated for row in rows)
