"""How often a classifier is right, in the measures of the literature. Numbers of classes in, numbers from -1 to 1 out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.errors import UserError

Counts = NDArray[np.int64]


def confusion(given: ArrayLike, wanted: ArrayLike, n_labels: int) -> Counts:
    """How often class i was taken for class j: (L, L), rows what was wanted, columns what was given."""
    given, wanted = np.asarray(given, dtype=np.int64), np.asarray(wanted, dtype=np.int64)
    if given.shape != wanted.shape:
        raise UserError(f"{given.size} classes given and {wanted.size} wanted: they must be text by text")
    if not given.size:
        raise UserError("nothing to measure: no texts")
    counts: Counts = np.bincount(wanted * n_labels + given, minlength=n_labels * n_labels).reshape(
        n_labels, n_labels
    )
    return counts


def accuracy(counts: Counts) -> float:
    """The share of texts whose class is right."""
    return float(np.trace(counts) / counts.sum())


def f1_of_each(counts: Counts) -> NDArray[Any]:
    """F1 of each class, 2 TP / (2 TP + FP + FN) (van Rijsbergen, 1979): (L,); 0 where nothing is right."""
    right = np.diag(counts)
    either = counts.sum(0) + counts.sum(1)  # 2 TP + FP + FN
    return np.where(either > 0, 2 * right / np.maximum(either, 1), 0.0)


def macro_f1(counts: Counts) -> float:
    """The mean F1 of the classes that were wanted or given: rare ones count as much as frequent ones."""
    there = counts.sum(0) + counts.sum(1) > 0
    return float(f1_of_each(counts)[there].mean())


def matthews(counts: Counts) -> float:
    """Matthews correlation of what was given and wanted, for any number of classes (Gorodkin, 2004, eq. 8).

    1: all right; 0: no better than chance, also where one class alone was given or wanted.
    """
    c = counts.astype(np.float64)
    total, right, wanted, given = c.sum(), np.trace(c), c.sum(1), c.sum(0)
    spread = (total**2 - given @ given) * (total**2 - wanted @ wanted)
    return float((right * total - wanted @ given) / np.sqrt(spread)) if spread > 0 else 0.0


def class_measures(given: ArrayLike, wanted: ArrayLike, labels: Sequence[str]) -> dict[str, float]:
    """Accuracy, macro F1 and Matthews correlation; of two classes also the F1 of the second, as ``f1_LABEL``."""
    counts = confusion(given, wanted, len(labels))
    measured = {"accuracy": accuracy(counts), "f1": macro_f1(counts), "mcc": matthews(counts)}
    if len(labels) == 2:
        measured[f"f1_{labels[1]}"] = float(f1_of_each(counts)[1])
    return measured
