"""Retrieval of texts by their vectors: how high the relevant ones rank.

Shapes: N queries, M texts, C features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
