"""Metrics of classification: class indices in, numbers from -1 to 1 out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.core.errors import UserError

ConfusionCounts = NDArray[np.int64]


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
    return (
        float((n_correct * total - reference_counts @ predicted_counts) / np.sqrt(spread))
        if spread > 0
        else 0.0
    )


def class_measures(predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Accuracy, macro F1, Matthews correlation; with two classes the F1 of the second, as ``f1_LABEL``."""
    counts = confusion_matrix(predictions, references, len(labels))
    measures = {"accuracy": accuracy(counts), "f1": macro_f1(counts), "mcc": matthews_corrcoef(counts)}
    if len(labels) == 2:
        measures[f"f1_{labels[1]}"] = float(per_class_f1(counts)[1])
    return measures
