"""Significance of differences: of BLEU and chrF against sacreBLEU's command line, of other scores against
formulas.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from polyhead.compare.significance import (
    BootstrapTest,
    SacrebleuTest,
    bootstrap_p_value,
    class_statistics,
    draw_resamples,
    f1_from_sums,
    make_bleu,
    make_chrf,
    matthews_from_sums,
    mean_from_sums,
    metric_statistics,
)
from polyhead.evaluate.class_metrics import confusion_matrix, macro_f1, matthews_corrcoef

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
METRICS: dict[str, Any] = {"bleu": make_bleu, "chrf": make_chrf}
SCORES = {name: SacrebleuTest(make_metric) for name, make_metric in METRICS.items()}
MEAN = BootstrapTest(mean_from_sums)


def units(name: str, outputs: list[str]) -> Any:
    return metric_statistics(METRICS[name](), outputs, REFERENCES)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """What the command line of sacreBLEU prints about the outputs GOOD and BAD, as JSON."""
    place = tmp_path_factory.mktemp("sacrebleu")
    for name, lines in (("ref", REFERENCES), ("good", GOOD), ("bad", BAD)):
        (place / name).write_text("\n".join(lines) + "\n")

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "sacrebleu", "ref", *arguments, "-f", "json", "-w", "9"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("name", METRICS)
def test_scores_intervals_and_p_are_those_of_the_command_line_of_sacrebleu(
    name: str, printed: Callable[..., Any]
) -> None:
    base, system = printed("-i", "good", "bad", "-m", name, "--paired-ar")
    (metric,) = set(base) - {"system"}
    own, other = units(name, BAD), units(name, GOOD)
    assert SCORES[name].score([own]) == pytest.approx(system[metric]["score"], abs=1e-8)
    assert SCORES[name].score([other]) == pytest.approx(base[metric]["score"], abs=1e-8)
    assert SCORES[name].p_value([own], [other]) == pytest.approx(system[metric]["p_value"], abs=1e-8)
    alone = printed("-i", "bad", "-m", name, "--confidence")
    mean, half = (float(alone[f"confidence_{key}"]) for key in ("mean", "var"))
    assert SCORES[name].interval([own]) == pytest.approx((mean - half, mean + half), abs=1e-4)


def test_a_system_against_itself_is_not_significant() -> None:
    for name in METRICS:
        assert SCORES[name].p_value([units(name, GOOD)], [units(name, GOOD)]) == 1.0
    stats = np.ones((9, 2))
    assert MEAN.p_value([stats], [stats]) == 1.0


def test_few_different_sentences_are_not_significant() -> None:
    for n, p in ((1, 1.0), (3, 0.25), (5, 0.0625)):  # of 2^n exchanges two are at least as far apart
        better = [*REFERENCES[:n], *GOOD[n:]]
        worse = ["zzz", "yyy", "xxx", "www", "vvv"][:n] + GOOD[n:]
        for name in METRICS:
            assert SCORES[name].p_value([units(name, better)], [units(name, worse)]) == p


def test_chinese_is_scored_with_its_own_tokens() -> None:
    outputs, references = ["我 是学生。", "你好吗"], ["我是 学生。", "你好"]
    theirs = BLEU(tokenize="zh").corpus_score(outputs, [references]).score
    stats = metric_statistics(make_bleu("zh"), outputs, references)
    assert SCORES["bleu"].score([stats]) == pytest.approx(theirs, abs=1e-9)


def test_seeds_are_averaged_score_by_score() -> None:
    for test, a, b in (
        (SCORES["bleu"], units("bleu", GOOD), units("bleu", BAD)),
        (MEAN, np.arange(20.0).reshape(10, 2) + 1, np.ones((10, 2))),
    ):
        one, two, both = (test.score(seeds) for seeds in ([a], [b], [a, b]))
        assert both == pytest.approx((one + two) / 2)
        ends = [test.interval([seed]) for seed in (a, b)]
        assert ends[0][0] < ends[0][1]
        assert min(ends)[0] < test.interval([a, b])[0] < test.interval([a, b])[1] < max(ends)[1]
    # exchanging a sentence exchanges it under all seeds: equal seeds are no further evidence
    a, b = units("bleu", GOOD), units("bleu", BAD)
    assert SCORES["bleu"].p_value([b, b], [a, a]) == SCORES["bleu"].p_value([b], [a])


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
    assert MEAN.interval([stats]) == pytest.approx(np.percentile(by_hand, [2.5, 97.5]), rel=1e-12)
    assert MEAN.score([stats]) == pytest.approx(stats[:, 0].sum() / stats[:, 1].sum())


def test_p_counts_the_resamples_beyond_the_observed_difference_on_both_sides() -> None:
    differences = np.array([1.0, 2.0, 3.0, 6.0])  # 2, 1, 0 and 3 away from their mean
    assert bootstrap_p_value(differences, 1.5) == pytest.approx(3 / 5)
    assert bootstrap_p_value(differences, -2.5) == pytest.approx(2 / 5)
    assert bootstrap_p_value(-differences, 1.5) == pytest.approx(3 / 5)


def test_p_is_what_the_normal_distribution_says_of_two_shares() -> None:
    rng = np.random.default_rng(7)
    base = rng.random(300) < 0.6
    system = np.where(rng.random(300) < 0.2, rng.random(300) < 0.72, base)
    differ = system.astype(float) - base
    z = differ.mean() / (differ.std() / 300**0.5)
    assert 1 < abs(z) < 1.5  # neither tail is nothing
    rights = [np.stack([right, np.ones(300)], 1).astype(np.float64) for right in (system, base)]
    assert MEAN.p_value([rights[0]], [rights[1]]) == pytest.approx(
        math.erfc(abs(z) / 2**0.5), abs=0.03
    )  # both tails


def test_one_in_twenty_designs_that_are_alike_is_called_different() -> None:
    rng, n = np.random.default_rng(2), 500
    called = 0
    for _ in range(n):
        base, system = (np.stack([rng.normal(size=100), np.ones(100)], 1) for _ in range(2))
        called += MEAN.p_value([system], [base]) < 0.05
    assert 0.03 < called / n < 0.08


@pytest.mark.parametrize("classes", [2, 5])
def test_resampled_f1_and_correlation_are_those_of_the_resampled_texts(classes: int) -> None:
    rng = np.random.default_rng(2)
    given, wanted = rng.integers(0, classes, 40), rng.integers(0, classes - 1, 40)
    given[:25] = wanted[:25]
    counts = draw_resamples(40)[:50]
    sums = counts @ class_statistics(given.tolist(), wanted.tolist(), classes)
    for n, f1, mcc in zip(counts, f1_from_sums(sums), matthews_from_sums(sums), strict=True):
        drawn = confusion_matrix(np.repeat(given, n), np.repeat(wanted, n), classes)
        assert f1 == pytest.approx(macro_f1(drawn))
        assert mcc == pytest.approx(matthews_corrcoef(drawn))


def test_where_one_class_is_all_there_is_the_correlation_is_none() -> None:
    sums = class_statistics([0, 0], [0, 0], 2).sum(0)[None]
    assert (float(matthews_from_sums(sums)[0]), float(f1_from_sums(sums)[0])) == (0.0, 1.0)
