import math

import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.evaluate.text_numbers import (
    best_threshold,
    multi_label_measures,
    number_measures,
    rank_numbers,
    rank_relevant,
    retrieval_measures,
)


def naive_f1(pairs):
    """F1 of (predicted, expected) pairs; None if neither side has any."""
    right = sum(a and b for a, b in pairs)
    total = sum(a for a, _ in pairs) + sum(b for _, b in pairs)
    return 2 * right / total if total else None


def test_multi_label_measures_equal_their_definitions():
    rng = np.random.default_rng(0)
    p, y = rng.random((40, 5)), (rng.random((40, 5)) < 0.3).astype(float)
    p[:, 4] *= 0.1
    y[:, 4] = 0  # neither occurs nor is predicted
    for threshold in (0.3, 0.5):
        rows = [
            [(a >= threshold, b == 1) for a, b in zip(*row, strict=True)] for row in zip(p, y, strict=True)
        ]
        by_label = [naive_f1([row[i] for row in rows]) for i in range(5)]
        known = [f1 for f1 in by_label if f1 is not None]
        assert len(known) == 4
        assert multi_label_measures(p, y, threshold) == pytest.approx(
            {
                "micro_f1": naive_f1([pair for row in rows for pair in row]),
                "f1": sum(known) / 4,
                "accuracy": sum(all(a == b for a, b in row) for row in rows) / 40,
            }
        )


def test_best_threshold_is_that_of_all_thresholds():
    rng = np.random.default_rng(1)
    p, y = rng.random((30, 4)).round(1), (rng.random((30, 4)) < 0.4).astype(float)
    best = max(multi_label_measures(p, y, t)["micro_f1"] for t in np.linspace(0, 1, 201))
    assert multi_label_measures(p, y, best_threshold(p, y))["micro_f1"] == pytest.approx(best)


def test_correlations_equal_their_definitions():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 6, 50).astype(float)
    x = y + rng.normal(size=50)
    ranks = [(sum(b < a for b in y) + 1 + sum(b <= a for b in y)) / 2 for a in y]
    assert rank_numbers(y).tolist() == ranks
    expected = np.corrcoef(x, y)[0, 1], np.corrcoef(rank_numbers(x), ranks)[0, 1]
    assert [*number_measures(x, y).values()] == pytest.approx(expected)
    assert number_measures(np.ones(3), np.arange(3.0)) == {"pearson": 0.0, "spearman": 0.0}
    with pytest.raises(UserError, match="nothing to evaluate"):
        number_measures(np.ones(0), np.ones(0))


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
