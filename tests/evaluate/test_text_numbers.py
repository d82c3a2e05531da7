import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.evaluate.text_numbers import (
    best_threshold,
    multi_label_measures,
    number_measures,
    rank_numbers,
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
