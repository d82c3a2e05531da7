"""How sure a difference is: paired bootstrap resampling of sentences (Koehn, 2004), computed from sums by sentence.

Shapes: N sentences, R resamples, K statistics of a sentence. A corpus score is a function of the statistics' sums,
so R resampled corpora are one product of (R, N) counts with (N, K) statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.analysis.metrics import bleu_tokenizer

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]
"""Sums of the statistics to scores: (R, K) -> (R,)."""

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's
ORDERS = 4  # of BLEU's n-grams
BETA = 2.0  # of chrF


class Interval(NamedTuple):
    """A score with its 95 % interval, and how likely a difference as large from the base would be by chance."""

    value: float
    low: float
    high: float
    p: float | None  # None for the base itself


def resamples(n: int) -> NDArray[np.int64]:
    """How often each of n sentences is drawn into each resampled corpus: (R, N). The draws are sacreBLEU's."""
    drawn = np.random.default_rng(SEED).choice(n, size=(RESAMPLES, n), replace=True)
    return np.stack([np.bincount(row, minlength=n) for row in drawn])


def interval(
    systems: Sequence[Floats], base: Sequence[Floats] | None, score: Score, counts: NDArray[Any]
) -> Interval:
    """The score of a design and its interval, paired with the base where one is given.

    ``systems`` and ``base`` hold the statistics (N, K) of each seed; a resample draws sentences, and its score is
    the mean over the seeds. So the interval is about other sentences; what other seeds would do is not in it.
    """
    values, sampled = scores(systems, score, counts)
    low, high = np.percentile(sampled, [2.5, 97.5])
    p = None
    if base is not None:
        base_value, base_sampled = scores(base, score, counts)
        p = p_value(sampled - base_sampled, values - base_value)
    return Interval(values, float(low), float(high), p)


def scores(seeds: Sequence[Floats], score: Score, counts: NDArray[Any]) -> tuple[float, Floats]:
    """The mean score of some seeds, and that of each resample."""
    value = float(np.mean([score(stats.sum(0, keepdims=True))[0] for stats in seeds]))
    sampled: Floats = np.mean([score(counts @ stats) for stats in seeds], axis=0)
    return value, sampled


def p_value(differences: Floats, observed: float) -> float:
    """Two-sided: how often resampling alone moves the difference further from its mean than it is from 0.

    One resample is counted more than there were, as sacreBLEU does. Its own p looks at the sizes of the differences,
    nearly all of which lie on the observed side, and so is about half of this one. Where there is no difference, p is 1.
    """
    if not observed:
        return 1.0
    beyond = int(np.sum(np.abs(differences - differences.mean()) > abs(observed)))
    return (beyond + 1) / (len(differences) + 1)


def bleu_statistics(outputs: Sequence[str], references: Sequence[str], lang: str) -> Floats:
    """(N, 10): lengths of output and reference, then for orders 1 to 4 the n-grams that are right, and all."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=bleu_tokenizer(lang, references))
    return np.array(metric._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.float64)


def chrf_statistics(outputs: Sequence[str], references: Sequence[str]) -> Floats:
    """(N, 18): for orders 1 to 6 the character n-grams of the output, of the reference, and of both."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return np.array(metric._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.float64)


def bleu_of(sums: Floats) -> Floats:
    """Corpus BLEU (Papineni et al., 2002) with sacreBLEU's smoothing: (R, 10) -> (R,).

    The i-th order without a match counts as 1 / 2^i n-gram; an order without any n-gram makes the score 0.
    """
    output, reference, right, total = sums[:, 0], sums[:, 1], sums[:, 2 : 2 + ORDERS], sums[:, 2 + ORDERS :]
    missed = (right == 0) & (total > 0)
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, 1), right)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(total > 0, 100 * smoothed / total, 0.0)
        mean = np.exp(np.log(precision).mean(1))
        brevity = np.where(output < reference, np.exp(1 - reference / output), 1.0)
    return np.where(right.any(1) & (total > 0).all(1), brevity * mean, 0.0)


def chrf_of(sums: Floats) -> Floats:
    """Corpus chrF2 (Popović, 2015): F of the mean precision and the mean recall over the orders: (R, 18) -> (R,)."""
    output, reference, both = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
    there = (output > 0) & (reference > 0)
    orders = np.maximum(there.sum(1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(there, both / output, 0.0).sum(1) / orders
        recall = np.where(there, both / reference, 0.0).sum(1) / orders
        score = 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
    return np.where(precision + recall > 0, score, 0.0)


def class_statistics(given: Sequence[int], wanted: Sequence[int], n_labels: int) -> Floats:
    """(N, 3 L): for each class, whether a text was rightly given it, was given it, and should have been."""
    classes = np.arange(n_labels)
    was, should = (np.asarray(labels)[:, None] == classes for labels in (given, wanted))
    return np.concatenate([was & should, was, should], 1).astype(np.float64)


def f1_of(sums: Floats) -> Floats:
    """The mean F1 of the classes that were given or wanted: (R, 3 L) -> (R,)."""
    right, given, wanted = np.split(sums, 3, 1)
    there = given + wanted > 0
    f1 = np.where(there, 2 * right / np.maximum(given + wanted, 1), 0.0)
    return f1.sum(1) / np.maximum(there.sum(1), 1)


def matthews_of(sums: Floats) -> Floats:
    """Matthews correlation of any number of classes (Gorodkin, 2004, eq. 8): (R, 3 L) -> (R,); 0 where one class is all."""
    right, given, wanted = np.split(sums, 3, 1)
    total = wanted.sum(1)
    spread = (total**2 - (given**2).sum(1)) * (total**2 - (wanted**2).sum(1))
    covariance = right.sum(1) * total - (given * wanted).sum(1)
    return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)


def mean_of(sums: Floats) -> Floats:
    """What each counted thing has of a sum, as -log p of a token: (R, 2) -> (R,), from the sum and the count."""
    return sums[:, 0] / sums[:, 1]
