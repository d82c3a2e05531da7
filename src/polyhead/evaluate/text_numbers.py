"""Measures of several labels per text, and of numbers. Shapes: N texts, L labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyhead.core.errors import UserError

Numbers = NDArray[np.float64]


def multi_label_measures(
    probabilities: Numbers, targets: Numbers, threshold: float = 0.5
) -> dict[str, float]:
    """Micro and macro F1, and the share of texts with exactly the right labels.

    ``probabilities`` and ``targets``, 0 or 1, are (N, L). As in scikit-learn, a label that neither occurs nor
    is predicted has F1 0; here it does not count in the mean.
    """
    _check_texts(targets)
    predicted, expected = probabilities >= threshold, targets > 0.5
    right, both = (predicted & expected).sum(0), predicted.sum(0) + expected.sum(0)
    f1 = 2 * right[both > 0] / both[both > 0]
    return {
        "micro_f1": float(2 * right.sum() / max(both.sum(), 1)),
        "f1": float(f1.mean()) if len(f1) else 0.0,
        "accuracy": float((predicted == expected).all(1).mean()),
    }


def best_threshold(probabilities: Numbers, targets: Numbers) -> float:
    """The threshold with the highest micro F1, in the middle between two probabilities."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    values, right = probabilities.ravel()[order], np.cumsum(targets.ravel()[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + targets.sum())
    is_last = np.append(values[1:] < values[:-1], True)  # of equal probabilities all are predicted, or none
    best = int(np.where(is_last, f1, -1.0).argmax())
    return float((values[best] + (values[best + 1] if best + 1 < len(values) else 0.0)) / 2)


def number_measures(predictions: Numbers, targets: Numbers) -> dict[str, float]:
    """Pearson and Spearman correlation of numbers (N,); 0 if one of the sides is constant."""
    _check_texts(targets)
    return {
        "pearson": correlate(predictions, targets),
        "spearman": correlate(rank_numbers(predictions), rank_numbers(targets)),
    }


def correlate(a: Numbers, b: Numbers) -> float:
    """Pearson correlation of (N,) and (N,)."""
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def rank_numbers(values: Numbers) -> Numbers:
    """The rank of each number, from 1; equal ones have the mean of their ranks."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index]


def _check_texts(targets: Sequence[float] | Numbers) -> None:
    if not len(targets):
        raise UserError("nothing to evaluate: no texts")
