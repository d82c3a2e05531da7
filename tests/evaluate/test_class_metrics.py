"""Measures of classes are those written out over pairs of texts, and those of published tables."""

import math

import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.evaluate.class_metrics import (
    accuracy,
    class_measures,
    confusion_matrix,
    macro_f1,
    matthews_corrcoef,
    per_class_f1,
)


def naive_f1(predicted_ids, true_ids, label):
    """Harmonic mean of precision and recall, as van Rijsbergen has it."""
    right = sum(g == w == label for g, w in zip(predicted_ids, true_ids, strict=True))
    precision = right / predicted_ids.count(label) if label in predicted_ids else 0.0
    recall = right / true_ids.count(label) if label in true_ids else 0.0
    return 2 * precision * recall / (precision + recall) if right else 0.0


def naive_matthews(predicted_ids, true_ids, n):
    """The correlation of one-hot rows over all classes (Gorodkin, 2004, eq. 2-3): cov(X, Y) / sqrt(cov(X, X)
    cov(Y, Y))."""
    x, y = np.eye(n)[predicted_ids], np.eye(n)[true_ids]
    x, y = x - x.mean(0), y - y.mean(0)
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / spread) if spread else 0.0


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_they_are_the_definitions(n, seed):
    rng = np.random.default_rng(seed)
    true_ids = rng.integers(0, n, 50).tolist()
    predicted_ids = [w if rng.random() < 0.6 else int(rng.integers(0, n)) for w in true_ids]
    counts = confusion_matrix(predicted_ids, true_ids, n)
    assert all(
        counts[i, j] == sum((w, g) == (i, j) for g, w in zip(predicted_ids, true_ids, strict=True))
        for i in range(n)
        for j in range(n)
    )
    assert accuracy(counts) == pytest.approx(
        sum(g == w for g, w in zip(predicted_ids, true_ids, strict=True)) / 50
    )
    each = [naive_f1(predicted_ids, true_ids, label) for label in range(n)]
    assert per_class_f1(counts) == pytest.approx(each)
    assert macro_f1(counts) == pytest.approx(sum(each) / n)
    assert matthews_corrcoef(counts) == pytest.approx(naive_matthews(predicted_ids, true_ids, n))


def test_two_classes_have_the_formula_of_matthews():
    """An unbalanced table: 93 % right, and hardly better than chance."""
    tp, tn, fp, fn = 90, 3, 4, 3
    predicted_ids = [1] * tp + [0] * tn + [1] * fp + [0] * fn
    true_ids = [1] * tp + [0] * tn + [0] * fp + [1] * fn
    mcc = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    measures = class_measures(predicted_ids, true_ids, ["no", "yes"])
    assert measures["mcc"] == pytest.approx(mcc)
    assert measures["accuracy"] == pytest.approx(0.93)
    assert measures["f1_yes"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert measures["f1"] == pytest.approx((measures["f1_yes"] + 2 * tn / (2 * tn + fp + fn)) / 2)


def test_the_ends_of_the_scale():
    assert class_measures([0, 1, 2], [0, 1, 2], "abc") == {"accuracy": 1.0, "f1": 1.0, "mcc": 1.0}
    assert class_measures([1, 0], [0, 1], "ab")["mcc"] == -1.0
    always = class_measures([1, 1, 1, 1], [0, 1, 1, 1], "ab")
    assert (always["mcc"], always["accuracy"], always["f1_b"]) == (0.0, 0.75, pytest.approx(6 / 7))
    assert always["f1"] == pytest.approx(3 / 7)  # the class that is never given counts as 0


def test_a_class_that_is_nowhere_does_not_count():
    assert class_measures([0, 1], [0, 1], "abc")["f1"] == 1.0
    assert class_measures([0, 2], [0, 1], "abc")["f1"] == pytest.approx(1 / 3)


def test_what_is_not_text_by_text_is_refused():
    with pytest.raises(UserError, match="2 predicted classes and 1 references"):
        confusion_matrix([0, 1], [0], 2)
    with pytest.raises(UserError, match="nothing to evaluate"):
        confusion_matrix([], [], 2)
