"""Significance of differences between designs, from the statistics of each sentence or other unit of text.

Shapes: N units, R resamples, K statistics of a unit, L classes. A corpus score is a function of the sums of
its statistics. A design with several seeds has the mean of their scores; resampling draws units, not seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyhead.core.array_types import Floats
from polyhead.evaluate.metrics import (
    N_RESAMPLES,
    Metric,
    References,
    bootstrap_p_value,
    draw_counts,
    make_scorer,
    reference_lists,
    to_streams,
)
from polyhead.evaluate.text_scorers import ScoredTexts

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Score, Signature
    from sacrebleu.significance import Result

ScoreFunction = Callable[[Floats], Floats]
"""Maps sums of the statistics to scores: (R, K) -> (R,)."""

Seeds = Sequence[Floats]
"""Statistics (N, K) of each seed of a design."""


class SacrebleuTest:
    """Tests of sacreBLEU for its own metrics: bootstrap interval, and paired approximate randomization.

    The numbers are those of ``sacrebleu --confidence`` and of ``sacrebleu --paired-ar``. Its paired bootstrap
    is not used: it counts one side of the differences, so that p is about half as large.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def score(self, seeds: Seeds) -> float:
        """Mean score over the seeds."""
        return SeedMean(make_scorer(self.metric), len(seeds))._aggregate_and_compute(np.hstack(seeds)).score

    def interval(self, seeds: Seeds) -> tuple[float, float]:
        """Mean of the resampled scores, and half the width of their 95 % interval on both sides of it."""
        (result,) = self._compare([seeds], n_ar_confidence=N_RESAMPLES)
        assert result.mean is not None and result.ci is not None
        return float(result.mean - result.ci), float(result.mean + result.ci)

    def p_value(self, seeds: Seeds, base: Seeds) -> float:
        """Share of 10,000 random exchanges of units between both that make a larger difference.

        Two of the 2^k exchanges of k different units make the same difference. sacreBLEU does not count them,
        and calls a single different sentence significant; so p is at least 2 / 2^k.
        """
        own, other = np.hstack(seeds), np.hstack(base)
        n_different = int((own != other).any(1).sum())
        p = self._compare([base, seeds])[1].p_value
        assert p is not None
        return max(p, min(1.0, 2.0 ** (1 - n_different)))

    def _compare(self, systems: Sequence[Seeds], **options: int) -> list[Result]:
        from sacrebleu.significance import PairedTest

        metric: Any = SeedMean(make_scorer(self.metric), len(systems[0]))
        named: Any = [(str(i), np.hstack(seeds)) for i, seeds in enumerate(systems)]
        results = PairedTest(named, {metric.name: metric}, None, "ar", **options)()[1]
        return list(results[metric.name])  # type: ignore[arg-type]


class SeedMean:
    """Mean of a sacreBLEU metric over seeds, with the methods of ``Metric`` that ``PairedTest`` calls.

    In place of a hypothesis it takes the statistics of a unit under each seed, one after the other.
    """

    name = "mean"

    def __init__(self, metric: Any, n_seeds: int) -> None:
        self.metric = metric
        self.n_seeds = n_seeds

    def _extract_corpus_statistics(self, hypotheses: Floats, references: None) -> Floats:
        return hypotheses

    def _aggregate_and_compute(self, stats: Floats) -> Score:
        return self._compute_score_from_stats(stats.sum(0))

    def _compute_score_from_stats(self, stats: Floats) -> Score:
        from sacrebleu.metrics.base import Score

        scores = [
            self.metric._compute_score_from_stats(s.tolist()).score for s in np.split(stats, self.n_seeds)
        ]
        return Score(self.name, sum(scores) / self.n_seeds)

    def get_signature(self) -> Signature:
        from sacrebleu.metrics.base import Signature

        return Signature({"num_refs": 1})


class BootstrapTest:
    """Paired bootstrap resampling (Koehn, 2004) of a score that sacreBLEU does not have, such as a loss.

    sacreBLEU tests its own metrics of texts only. As a score is a function of sums, R resampled corpora are
    one product of (R, N) counts with (N, K) statistics, which also takes the 100,000s of units of a language
    model.
    """

    def __init__(self, from_sums: ScoreFunction) -> None:
        self.from_sums = from_sums

    def score(self, seeds: Seeds) -> float:
        """Mean score over the seeds."""
        return float(np.mean([self.from_sums(stats.sum(0, keepdims=True))[0] for stats in seeds]))

    def resample(self, seeds: Seeds) -> Floats:
        """Mean score over the seeds, of each resample: (R,)."""
        counts = draw_resamples(len(seeds[0]))
        scores: Floats = np.mean([self.from_sums(counts @ stats) for stats in seeds], axis=0)
        return scores

    def interval(self, seeds: Seeds) -> tuple[float, float]:
        """95 % interval of the resampled scores."""
        low, high = np.percentile(self.resample(seeds), [2.5, 97.5])
        return float(low), float(high)

    def p_value(self, seeds: Seeds, base: Seeds) -> float:
        """Two-sided p, see ``bootstrap_p_value``."""
        return bootstrap_p_value(
            self.resample(seeds) - self.resample(base), self.score(seeds) - self.score(base)
        )


SignificanceTest = SacrebleuTest | BootstrapTest
"""Score of a design, its 95 % interval, and whether it differs from the base."""


@lru_cache(maxsize=1)
def draw_resamples(n: int) -> NDArray[np.int64]:
    """How often each of ``n`` units is drawn into each resample: (R, N). Draws are those of sacreBLEU."""
    return np.stack([*draw_counts(n, N_RESAMPLES)])


def metric_statistics(
    metric: Metric, outputs: Sequence[str], references: References, lang: str = ""
) -> Floats:
    """Statistics of each sentence whose sums give its corpus score: (N, K)."""
    lists = reference_lists(references)
    scorer = make_scorer(metric, ScoredTexts(lang, [texts[0] for texts in lists]))
    return np.array(scorer._extract_corpus_statistics(list(outputs), to_streams(lists)), dtype=np.float64)


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
