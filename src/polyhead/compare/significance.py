"""Significance of differences: paired bootstrap resampling of sentences (Koehn, 2004) from per-sentence sums.

Shapes: N sentences, R resamples, K statistics of a sentence, L classes. A corpus score is a function of the
sums of its statistics, so R resampled corpora are one product of (R, N) counts with (N, K) statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.array_types import Floats
from polyhead.evaluate.translation_metrics import bleu_tokenizer

ScoreFunction = Callable[[Floats], Floats]
"""Maps sums of the statistics to scores: (R, K) -> (R,)."""

N_RESAMPLES = 1000
SEED = 12345  # the default of sacreBLEU
BLEU_ORDER = 4  # maximum n-gram length of BLEU
CHRF_BETA = 2.0  # beta of the F-score in chrF


class ScoreInterval(NamedTuple):
    """A score with its 95 % interval, and the p-value of its difference from the base."""

    value: float
    low: float
    high: float
    p: float | None  # None for the base itself


def draw_resamples(n: int) -> NDArray[np.int64]:
    """How often each of ``n`` sentences is drawn into each resample: (R, N). Draws are those of sacreBLEU."""
    indices = np.random.default_rng(SEED).choice(n, size=(N_RESAMPLES, n), replace=True)
    return np.stack([np.bincount(row, minlength=n) for row in indices])


def bootstrap_interval(
    systems: Sequence[Floats], base: Sequence[Floats] | None, score: ScoreFunction, counts: NDArray[Any]
) -> ScoreInterval:
    """Score of a design and its 95 % interval, with a p-value if a base is passed, paired with it.

    ``systems`` and ``base`` hold the statistics (N, K) of each seed. A resample draws sentences, and its
    score is the mean over the seeds. The interval therefore covers the choice of sentences, not the choice of
    seeds.
    """
    values, sampled = score_resamples(systems, score, counts)
    low, high = np.percentile(sampled, [2.5, 97.5])
    p = None
    if base is not None:
        base_value, base_sampled = score_resamples(base, score, counts)
        p = p_value(sampled - base_sampled, values - base_value)
    return ScoreInterval(values, float(low), float(high), p)


def score_resamples(
    seeds: Sequence[Floats], score: ScoreFunction, counts: NDArray[Any]
) -> tuple[float, Floats]:
    """Mean score over the seeds, and that of each resample."""
    value = float(np.mean([score(stats.sum(0, keepdims=True))[0] for stats in seeds]))
    sampled: Floats = np.mean([score(counts @ stats) for stats in seeds], axis=0)
    return value, sampled


def p_value(differences: Floats, observed: float) -> float:
    """Two-sided p: the share of resamples that move the difference further than it is from 0.

    A resampled difference is compared with the mean of all of them. Both counts are increased by one, as in
    sacreBLEU. Its own p compares the sizes of the differences, nearly all of which lie on the observed side,
    and so is about half of this one. p is 1 if there is no difference.
    """
    if not observed:
        return 1.0
    beyond = int(np.sum(np.abs(differences - differences.mean()) > abs(observed)))
    return (beyond + 1) / (len(differences) + 1)


def bleu_statistics(outputs: Sequence[str], references: Sequence[str], lang: str) -> Floats:
    """(N, 10): lengths of output and reference, then for orders 1 to 4 matching n-grams, and all n-grams."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=bleu_tokenizer(lang, references))
    return np.array(metric._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.float64)


def chrf_statistics(outputs: Sequence[str], references: Sequence[str]) -> Floats:
    """(N, 18): for orders 1 to 6 the character n-grams of the output, of the reference, and those in both."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return np.array(metric._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.float64)


def bleu_from_sums(sums: Floats) -> Floats:
    """Corpus BLEU (Papineni et al., 2002) with the smoothing of sacreBLEU: (R, 10) -> (R,).

    The i-th order without a match counts as 1 / 2^i n-gram; an order without any n-gram makes the score 0.
    """
    output, reference, matches, total = (
        sums[:, 0],
        sums[:, 1],
        sums[:, 2 : 2 + BLEU_ORDER],
        sums[:, 2 + BLEU_ORDER :],
    )
    is_unmatched = (matches == 0) & (total > 0)
    smoothed = np.where(is_unmatched, 0.5 ** np.cumsum(is_unmatched, 1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(total > 0, 100 * smoothed / total, 0.0)
        mean = np.exp(np.log(precision).mean(1))
        brevity = np.where(output < reference, np.exp(1 - reference / output), 1.0)
    return np.where(matches.any(1) & (total > 0).all(1), brevity * mean, 0.0)


def chrf_from_sums(sums: Floats) -> Floats:
    """Corpus chrF2 (Popović, 2015): F of mean precision and mean recall over the orders: (R, 18) -> (R,)."""
    output, reference, matches = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
    is_counted = (output > 0) & (reference > 0)
    orders = np.maximum(is_counted.sum(1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(is_counted, matches / output, 0.0).sum(1) / orders
        recall = np.where(is_counted, matches / reference, 0.0).sum(1) / orders
        score = 100 * (1 + CHRF_BETA**2) * precision * recall / (CHRF_BETA**2 * precision + recall)
    return np.where(precision + recall > 0, score, 0.0)


def class_statistics(predictions: Sequence[int], targets: Sequence[int], n_labels: int) -> Floats:
    """(N, 3 L): for each class whether a text has it predicted correctly, predicted, and as its label."""
    classes = np.arange(n_labels)
    predicted, expected = (np.asarray(labels)[:, None] == classes for labels in (predictions, targets))
    return np.concatenate([predicted & expected, predicted, expected], 1).astype(np.float64)


def f1_from_sums(sums: Floats) -> Floats:
    """Macro F1 over the classes that occur in predictions or labels: (R, 3 L) -> (R,)."""
    correct, predicted, expected = np.split(sums, 3, 1)
    occurs = predicted + expected > 0
    f1 = np.where(occurs, 2 * correct / np.maximum(predicted + expected, 1), 0.0)
    return f1.sum(1) / np.maximum(occurs.sum(1), 1)


def matthews_from_sums(sums: Floats) -> Floats:
    """Matthews correlation of any number of classes (Gorodkin, 2004, eq. 8): (R, 3 L) -> (R,).

    0 if all predictions or all labels are one class.
    """
    correct, predicted, expected = np.split(sums, 3, 1)
    total = expected.sum(1)
    spread = (total**2 - (predicted**2).sum(1)) * (total**2 - (expected**2).sum(1))
    covariance = correct.sum(1) * total - (predicted * expected).sum(1)
    return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)


def mean_from_sums(sums: Floats) -> Floats:
    """Mean per counted unit, e.g. -log p per token: (R, 2) -> (R,), from the sum and the count."""
    return sums[:, 0] / sums[:, 1]
