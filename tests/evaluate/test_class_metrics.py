import math

import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.evaluate.classify import (
    accuracy,
    class_measures,
    confusion_matrix,
    macro_f1,
    matthews_corrcoef,
    per_class_f1,
)


def naive_f1(predictions, labels, label):
    """Harmonic mean of precision and recall, as van Rijsbergen has it."""
    right = sum(p == y == label for p, y in zip(predictions, labels, strict=True))
    precision = right / predictions.count(label) if label in predictions else 0.0
    recall = right / labels.count(label) if label in labels else 0.0
    return 2 * precision * recall / (precision + recall) if right else 0.0


def naive_matthews(predictions, labels, n):
    """Correlation of one-hot rows (Gorodkin, 2004, eq. 2-3): cov(X, Y) / sqrt(cov(X, X) cov(Y, Y))."""
    x, y = np.eye(n)[predictions], np.eye(n)[labels]
    x, y = x - x.mean(0), y - y.mean(0)
    norm = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / norm) if norm else 0.0


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (3, 1), (3, 2), (6, 3)])
def test_metrics_equal_their_definitions(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n, 50).tolist()
    predictions = [y if rng.random() < 0.6 else int(rng.integers(0, n)) for y in labels]
    counts, pairs = confusion_matrix(predictions, labels, n), list(zip(labels, predictions, strict=True))
    assert [[pairs.count((i, j)) for j in range(n)] for i in range(n)] == counts.tolist()
    assert accuracy(counts) == pytest.approx(sum(y == p for y, p in pairs) / 50)
    f1 = [naive_f1(predictions, labels, label) for label in range(n)]
    assert per_class_f1(counts) == pytest.approx(f1)
    assert macro_f1(counts) == pytest.approx(sum(f1) / n)
    assert matthews_corrcoef(counts) == pytest.approx(naive_matthews(predictions, labels, n))


def test_extremes_of_the_scale():
    assert class_measures([0, 1, 2], [0, 1, 2], "abc") == {"accuracy": 1.0, "f1": 1.0, "mcc": 1.0}
    assert class_measures([1, 0], [0, 1], "ab")["mcc"] == -1.0
    constant = class_measures([1, 1, 1, 1], [0, 1, 1, 1], "ab")
    assert (constant["mcc"], constant["accuracy"], constant["f1_b"]) == (0.0, 0.75, pytest.approx(6 / 7))
    assert constant["f1"] == pytest.approx(3 / 7)  # the class that is never predicted counts as 0
    # absent classes do not count
    assert class_measures([0, 1], [0, 1], "abc")["f1"] == 1.0
    assert class_measures([0, 2], [0, 1], "abc")["f1"] == pytest.approx(1 / 3)


def test_unequal_lengths_are_refused():
    with pytest.raises(UserError, match="2 predicted classes and 1 references"):
        confusion_matrix([0, 1], [0], 2)
    with pytest.raises(UserError, match="nothing to evaluate"):
        confusion_matrix([], [], 2)
