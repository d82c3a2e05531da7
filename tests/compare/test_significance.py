"""Bootstrap resampling, against sacreBLEU's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, estimate_ci

from polyhead.compare import results
from polyhead.compare.significance import (
    bleu_from_sums,
    bleu_statistics,
    bootstrap_interval,
    chrf_from_sums,
    chrf_statistics,
    draw_resamples,
    mean_from_sums,
    p_value,
    score_resamples,
)
from polyhead.compare.tasks.base import QualityMeasure

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "red",
    "two",
    "runs",
    "sleeps",
    "near",
    "house",
    "with",
    "of",
    "and",
    "big",
    "small",
    "blue",
]


def corpus(noise: float, n: int = 60) -> tuple[list[str], list[str]]:
    """References, and outputs in which that share of the words is another one or missing."""
    rng = np.random.default_rng(7)
    references, outputs = [], []
    for _ in range(n):
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(4, 15))]
        references.append(" ".join(words))
        drawn = [(w, rng.random(), WORDS[rng.integers(0, len(WORDS))]) for w in words]
        outputs.append(" ".join(w if u > noise else other for w, u, other in drawn if u > noise / 3))
    return references, outputs


REFERENCES, GOOD = corpus(0.15)
BAD = corpus(0.22)[1]
METRICS: list[tuple[str, Any, Any, Any]] = [
    ("BLEU", BLEU(), lambda outputs: bleu_statistics(outputs, REFERENCES, "en"), bleu_from_sums),
    ("chrF2", CHRF(), lambda outputs: chrf_statistics(outputs, REFERENCES), chrf_from_sums),
]


@pytest.mark.parametrize(("name", "metric", "statistics", "score"), METRICS, ids=["bleu", "chrf"])
def test_scores_and_significance_are_those_of_sacrebleu(
    name: str, metric: Any, statistics: Any, score: Any
) -> None:
    _, theirs = PairedTest([("base", GOOD), ("system", BAD)], {name: metric}, [REFERENCES], "bs", 1000)()
    base, system = theirs[name]
    counts = draw_resamples(len(REFERENCES))
    ours = bootstrap_interval([statistics(BAD)], [statistics(GOOD)], score, counts)
    assert ours.value == pytest.approx(system.score, abs=1e-9)
    _, sampled_base = score_resamples([statistics(GOOD)], score, counts)
    _, sampled = score_resamples([statistics(BAD)], score, counts)
    # of a clear difference sacreBLEU counts one side, and p is of both
    centred = (sampled - sampled_base) - np.mean(sampled - sampled_base)
    beyond = [int(np.sum(side > abs(system.score - base.score))) for side in (centred, -centred)]
    assert ours.p == pytest.approx((1 + sum(beyond)) / 1001, abs=1e-12)
    assert system.p_value == pytest.approx((1 + beyond[system.score < base.score]) / 1001, abs=2.1 / 1001)
    mean, half = estimate_ci(sampled)
    assert (mean, half) == (pytest.approx(system.mean, abs=1e-4), pytest.approx(system.ci, abs=1e-4))
    assert ours.low < mean < ours.high
    assert ours.high - ours.low == pytest.approx(2 * half, rel=0.02)
    assert bootstrap_interval([statistics(GOOD)], None, score, counts).value == pytest.approx(
        base.score, abs=1e-9
    )


@pytest.mark.parametrize(
    ("outputs", "references"),
    [
        (["a b c d e f", "x"], ["a b c d e f", "y z"]),
        (["a b", "c"], ["a b", "c d"]),  # no 4-gram anywhere
        (["q", "r"], ["a b c d", "e f g"]),  # nothing right
        (["a b c d e", "f g h i j"], ["a b x d e", "f g y i k"]),  # smoothing of two orders
        (["", ""], ["a b c d", "e"]),
        (["a b c d e f g h i"], ["a b c d"]),
    ],
)
def test_odd_corpora_score_as_in_sacrebleu(outputs: list[str], references: list[str]) -> None:
    bleu, chrf = (
        BLEU().corpus_score(outputs, [references]).score,
        CHRF().corpus_score(outputs, [references]).score,
    )
    assert bleu_from_sums(bleu_statistics(outputs, references, "en").sum(0)[None])[0] == pytest.approx(
        bleu, abs=1e-9
    )
    assert chrf_from_sums(chrf_statistics(outputs, references).sum(0)[None])[0] == pytest.approx(
        chrf, abs=1e-9
    )


def test_chinese_is_scored_with_its_own_tokens() -> None:
    outputs, references = ["我 是学生。", "你好吗"], ["我是 学生。", "你好"]
    theirs = BLEU(tokenize="zh").corpus_score(outputs, [references]).score
    assert bleu_from_sums(bleu_statistics(outputs, references, "zh").sum(0)[None])[0] == pytest.approx(
        theirs, abs=1e-9
    )


def test_every_resample_has_as_many_sentences() -> None:
    counts = draw_resamples(17)
    assert counts.shape == (1000, 17)
    assert (counts.sum(1) == 17).all()
    by_hand = np.random.default_rng(12345).choice(17, size=(1000, 17), replace=True)
    assert [(by_hand[3] == i).sum() for i in range(17)] == counts[3].tolist()


def test_an_interval_holds_what_resampling_by_hand_gives() -> None:
    rng = np.random.default_rng(0)
    stats = np.stack([rng.gamma(2.0, 5.0, 40), rng.integers(3, 20, 40)], 1)
    drawn = np.random.default_rng(12345).choice(40, size=(1000, 40), replace=True)
    by_hand = [stats[rows, 0].sum() / stats[rows, 1].sum() for rows in drawn]
    found = bootstrap_interval([stats], None, mean_from_sums, draw_resamples(40))
    assert [found.low, found.high] == pytest.approx(np.percentile(by_hand, [2.5, 97.5]), rel=1e-12)
    assert found.value == pytest.approx(stats[:, 0].sum() / stats[:, 1].sum())


def test_seeds_are_averaged_score_by_score() -> None:
    a, b = bleu_statistics(GOOD, REFERENCES, "en"), bleu_statistics(BAD, REFERENCES, "en")
    counts = draw_resamples(len(REFERENCES))
    one, two = score_resamples([a], bleu_from_sums, counts), score_resamples([b], bleu_from_sums, counts)
    both = score_resamples([a, b], bleu_from_sums, counts)
    assert both[0] == pytest.approx((one[0] + two[0]) / 2)
    assert both[1] == pytest.approx((one[1] + two[1]) / 2)


def test_a_system_against_itself_is_not_significant() -> None:
    stats = bleu_statistics(GOOD, REFERENCES, "en")
    assert bootstrap_interval([stats], [stats], bleu_from_sums, draw_resamples(len(REFERENCES))).p == 1.0


def test_p_counts_the_resamples_beyond_the_observed_difference_on_both_sides() -> None:
    differences = np.array([1.0, 2.0, 3.0, 6.0])  # 2, 1, 0 and 3 away from their mean
    assert p_value(differences, 1.5) == pytest.approx(3 / 5)
    assert p_value(differences, -2.5) == pytest.approx(2 / 5)
    assert p_value(-differences, 1.5) == pytest.approx(3 / 5)


def test_p_is_what_the_normal_distribution_says_of_two_shares() -> None:
    rng = np.random.default_rng(7)
    base = rng.random(300) < 0.6
    system = np.where(rng.random(300) < 0.2, rng.random(300) < 0.72, base)
    differ = system.astype(float) - base
    z = differ.mean() / (differ.std() / 300**0.5)
    assert 1 < abs(z) < 1.5  # neither tail is nothing
    rights = [np.stack([right, np.ones(300)], 1).astype(np.float64) for right in (system, base)]
    found = bootstrap_interval([rights[0]], [rights[1]], mean_from_sums, draw_resamples(300))
    assert found.p == pytest.approx(math.erfc(abs(z) / 2**0.5), abs=0.03)  # both tails


def test_one_in_twenty_designs_that_are_alike_is_called_different() -> None:
    rng, counts, n = np.random.default_rng(2), draw_resamples(100), 500
    called = 0
    for _ in range(n):
        base, system = (np.stack([rng.normal(size=100), np.ones(100)], 1) for _ in range(2))
        p = bootstrap_interval([system], [base], mean_from_sums, counts).p
        assert p is not None
        called += p < 0.05
    assert 0.03 < called / n < 0.08


def test_the_interval_is_about_the_value_that_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all seeds of a design, though its base has but one of them; whether they differ is told by that one."""
    measure = QualityMeasure("loss", "loss", "validation loss", mean_from_sums, True, 3, 3)
    rng = np.random.default_rng(0)

    def drawn(mean: float) -> dict[str, Any]:
        return {"loss": np.stack([rng.normal(mean, 0.05, 400), np.ones(400)], 1)}

    own = {seed: drawn(float(seed)) for seed in (1, 2, 3)}
    plan = SimpleNamespace(
        designs=[SimpleNamespace(name="base")], task=SimpleNamespace(measures=[measure]), base=None
    )
    monkeypatch.setattr(results, "tokenizer_fingerprint", lambda recipe: "same")
    row = SimpleNamespace(name="x", is_base=False, recipe=object())
    found = results.compute_intervals(row, plan, {"x": own, "base": {1: drawn(1.1)}})
    low, high = found["loss_interval"]
    assert low < 2 < high and high - low < 0.02
    assert found["loss_p"] == pytest.approx(0.001, abs=1e-4)
