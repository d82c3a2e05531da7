"""Measures of several labels per text, of numbers, and of the ranks of retrieved texts.

Shapes: N texts or queries, L labels, M retrieved texts, C features.
"""

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


Vectors = NDArray[np.float32]
_CHUNK = 256  # queries whose scores are in memory at a time
CUT = 10  # ranks that count in nDCG


def rank_relevant(
    queries: Vectors, texts: Vectors, relevant: Sequence[Sequence[int]]
) -> list[NDArray[np.int64]]:
    """The ranks, from 1, of the ``relevant`` texts of each query, the best first.

    Texts are ranked by the scalar product (N, C), (M, C). Of equal ones, the relevant text comes last, so
    that a model that maps all texts to one vector finds nothing.
    """
    ranks = []
    for start in range(0, len(queries), _CHUNK):
        scores = queries[start : start + _CHUNK] @ texts.T
        for row, expected in zip(scores, relevant[start : start + _CHUNK], strict=True):
            found = np.sort(row[list(expected)])[::-1]
            others = np.delete(row, list(expected))
            above = (others[None] >= found[:, None]).sum(1)
            ranks.append(above + np.arange(1, len(found) + 1))
    return ranks


def retrieval_measures(ranks: Sequence[NDArray[np.int64]]) -> dict[str, float]:
    """nDCG of the first 10 ranks (Järvelin & Kekäläinen, 2002) and mean reciprocal rank, over queries."""
    ndcg = []
    for found in ranks:
        ideal = np.arange(1, min(len(found), CUT) + 1)
        gain, best = ((1 / np.log2(1 + places)).sum() for places in (found[found <= CUT], ideal))
        ndcg.append(gain / best)
    return {"ndcg": float(np.mean(ndcg)), "mrr": float(np.mean([1 / found[0] for found in ranks]))}
