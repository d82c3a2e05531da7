import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from polyhead.compare import significance
from polyhead.evaluate.classify import confusion_matrix, macro_f1, matthews_corrcoef
from polyhead.evaluate.metrics import KNOWN_METRICS

WORDS = ["the", "a", "dog", "cat", "red", "two", "runs", "sleeps"]
WORDS += ["near", "house", "with", "of", "and", "big"]


def make_corpus(noise, n=60):
    """References, and outputs in which this fraction of the words is another one or missing."""
    rng = np.random.default_rng(7)
    references, outputs = [], []
    for _ in range(n):
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(4, 15))]
        references.append(" ".join(words))
        changes = [(w, rng.random(), WORDS[rng.integers(0, len(WORDS))]) for w in words]
        outputs.append(" ".join(w if u > noise else other for w, u, other in changes if u > noise / 3))
    return references, outputs


REFERENCES, GOOD = make_corpus(0.15)
BAD = make_corpus(0.22)[1]
TESTS = {name: significance.SacrebleuTest(KNOWN_METRICS[name]) for name in ("bleu", "chrf")}
MEAN = significance.BootstrapTest(significance.mean_from_sums)


def compute_statistics(name, outputs):
    return significance.metric_statistics(KNOWN_METRICS[name], outputs, REFERENCES)


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU), ("chrf", CHRF)])
def test_scores_intervals_and_p_match_sacrebleu(name, metric):
    metrics, systems = {name: metric(references=[REFERENCES])}, [("good", GOOD), ("bad", BAD)]
    _, (base, system) = PairedTest(systems, metrics, None, "ar")()[1].values()
    bad, good = compute_statistics(name, BAD), compute_statistics(name, GOOD)
    test = TESTS[name]
    assert test.score([bad]) == pytest.approx(system.score, abs=1e-8)
    assert test.score([good]) == pytest.approx(base.score, abs=1e-8)
    assert test.p_value([bad], [good]) == pytest.approx(system.p_value, abs=1e-8)
    score = metrics[name].corpus_score(BAD, None, n_bootstrap=1000)
    interval = score._mean - score._ci, score._mean + score._ci
    assert test.interval([bad]) == pytest.approx(interval, abs=1e-4)


@pytest.mark.usefixtures("few_resamples")
def test_equal_systems_and_few_sentences_are_not_significant():
    bleu = TESTS["bleu"]
    good = compute_statistics("bleu", GOOD)
    assert bleu.p_value([good], [good]) == 1.0
    assert MEAN.p_value([np.ones((9, 2))], [np.ones((9, 2))]) == 1.0
    for n, p in ((1, 1.0), (3, 0.25), (5, 0.0625)):  # of 2^n exchanges two are at least as far apart
        better = compute_statistics("bleu", [*REFERENCES[:n], *GOOD[n:]])
        worse = compute_statistics("bleu", ["zzz", "yyy", "xxx", "www", "vvv"][:n] + GOOD[n:])
        assert bleu.p_value([better], [worse]) == p


def test_chinese_is_scored_with_its_own_tokens():
    outputs, references = ["我 是学生。", "你好吗"], ["我是 学生。", "你好"]
    expected = BLEU(tokenize="zh").corpus_score(outputs, [references]).score
    stats = significance.metric_statistics(KNOWN_METRICS["bleu"], outputs, references, "zh")
    assert TESTS["bleu"].score([stats]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.usefixtures("few_resamples")
def test_scores_are_averaged_over_seeds():
    good, bad = compute_statistics("bleu", GOOD), compute_statistics("bleu", BAD)
    means = np.arange(20.0).reshape(10, 2) + 1, np.ones((10, 2))
    for test, a, b in ((TESTS["bleu"], good, bad), (MEAN, *means)):
        one, two, both = (test.score(seeds) for seeds in ([a], [b], [a, b]))
        assert both == pytest.approx((one + two) / 2)
        intervals = [test.interval([seed]) for seed in (a, b)]
        assert intervals[0][0] < intervals[0][1]
        low, high = test.interval([a, b])
        assert min(intervals)[0] < low < high < max(intervals)[1]
    # exchanging a sentence exchanges it under all seeds: equal seeds are no further evidence
    assert TESTS["bleu"].p_value([bad, bad], [good, good]) == TESTS["bleu"].p_value([bad], [good])


def test_interval_and_p_value_of_resamples():
    rng = np.random.default_rng(0)
    stats = np.stack([rng.gamma(2.0, 5.0, 40), rng.integers(3, 20, 40)], 1)
    resamples = np.random.default_rng(12345).choice(40, size=(1000, 40), replace=True)
    expected = [stats[rows, 0].sum() / stats[rows, 1].sum() for rows in resamples]
    assert MEAN.interval([stats]) == pytest.approx(np.percentile(expected, [2.5, 97.5]), rel=1e-12)
    assert MEAN.score([stats]) == pytest.approx(stats[:, 0].sum() / stats[:, 1].sum())
    differences = np.array([1.0, 2.0, 3.0, 6.0])  # 2, 1, 0 and 3 away from their mean
    assert significance.bootstrap_p_value(differences, 1.5) == pytest.approx(3 / 5)
    assert significance.bootstrap_p_value(differences, -2.5) == pytest.approx(2 / 5)
    assert significance.bootstrap_p_value(-differences, 1.5) == pytest.approx(3 / 5)
    # of equal systems five percent are significant
    rng, n = np.random.default_rng(2), 500
    n_significant = 0
    for _ in range(n):
        base, system = (np.stack([rng.normal(size=100), np.ones(100)], 1) for _ in range(2))
        n_significant += MEAN.p_value([system], [base]) < 0.05
    assert 0.03 < n_significant / n < 0.08


@pytest.mark.parametrize("n_classes", [2, 5])
def test_resampled_class_metrics_match_reference(n_classes):
    rng = np.random.default_rng(2)
    outputs, labels = rng.integers(0, n_classes, 40), rng.integers(0, n_classes - 1, 40)
    outputs[:25] = labels[:25]
    counts = significance.draw_resamples(40)[:50]
    sums = counts @ significance.class_statistics(outputs.tolist(), labels.tolist(), n_classes)
    for n, f1, mcc in zip(
        counts, significance.f1_from_sums(sums), significance.matthews_from_sums(sums), strict=True
    ):
        matrix = confusion_matrix(np.repeat(outputs, n), np.repeat(labels, n), n_classes)
        assert f1 == pytest.approx(macro_f1(matrix))
        assert mcc == pytest.approx(matthews_corrcoef(matrix))
    sums = significance.class_statistics([0, 0], [0, 0], 2).sum(0)[None]  # a single class
    assert (float(significance.matthews_from_sums(sums)[0]), float(significance.f1_from_sums(sums)[0])) == (
        0.0,
        1.0,
    )
