"""Tests of evaluate/retrieval.py against a loop over the sorted texts of each query."""

import math

import numpy as np
import pytest

from polyhead.evaluate.retrieval import rank_relevant, retrieval_measures


def naive_measures(scores, relevant):
    """nDCG@10 and the reciprocal rank of one query; equal texts that are not relevant come first."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i in relevant))
    gains = [1 / math.log2(rank + 1) for rank, i in enumerate(order[:10], 1) if i in relevant]
    ideal = [1 / math.log2(rank + 1) for rank in range(1, min(len(relevant), 10) + 1)]
    first = next(rank for rank, i in enumerate(order, 1) if i in relevant)
    return sum(gains) / sum(ideal), 1 / first


def test_measures_are_those_of_sorted_texts():
    rng = np.random.default_rng(0)
    queries, texts = rng.standard_normal((300, 4)), rng.standard_normal((40, 4))
    texts[7] = texts[3]
    relevant = [sorted(rng.choice(40, rng.integers(1, 14), replace=False).tolist()) for _ in queries]
    relevant[0], relevant[1] = [3], [7]
    ranks = rank_relevant(queries.astype(np.float32), texts.astype(np.float32), relevant)
    scores = queries.astype(np.float32) @ texts.astype(np.float32).T
    rows = [naive_measures(row, chosen) for row, chosen in zip(scores, relevant, strict=True)]
    ndcg, mrr = np.mean(rows, axis=0)
    assert retrieval_measures(ranks) == pytest.approx({"ndcg": ndcg, "mrr": mrr})
    assert [len(row) for row in ranks] == [*map(len, relevant)]


def test_equal_vectors_rank_last():
    queries, texts = np.ones((3, 2), np.float32), np.ones((50, 2), np.float32)
    ranks = rank_relevant(queries, texts, [[0], [1], [2, 3]])
    assert [row.tolist() for row in ranks] == [[50], [50], [49, 50]]
    assert retrieval_measures(ranks)["ndcg"] == 0
