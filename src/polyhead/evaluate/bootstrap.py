"""Bootstrap resampling of corpus scores: intervals, and p of the difference of two outputs.

Shapes: N texts, R resamples, K statistics of a text. A corpus score is a function of the sums of the
statistics of its texts, so a resampled corpus is scored without its texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.core.array_types import Floats

N_RESAMPLES = 1000
SEED = 12345  # the default of sacreBLEU


def draw_counts(n: int, n_resamples: int) -> Iterator[NDArray[np.int64]]:
    """How often each of ``n`` texts is drawn into each resample, as by sacreBLEU: R times (N,)."""
    rng = np.random.default_rng(SEED)
    return (np.bincount(rng.choice(n, n), minlength=n) for _ in range(n_resamples))


def resample_scores(scorer: Any, statistics: ArrayLike, n_resamples: int) -> list[float]:
    """Score of each resample (R) of the texts with these statistics (N, K), by a metric of sacreBLEU.

    The resamples depend on N alone, so they draw the same texts for every output.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    return [
        float(scorer._compute_score_from_stats((counts @ statistics).tolist()).score)
        for counts in draw_counts(len(statistics), n_resamples)
    ]


def score_interval(resamples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of resampled scores, by the ranks of sacreBLEU: without 1/40 at each end."""
    ordered = sorted(resamples)
    return ordered[len(ordered) // 40], ordered[-1 - len(ordered) // 40]


def bootstrap_p_value(differences: Floats, observed: float) -> float:
    """Two-sided p: the share of resamples that move the difference further than it is from 0.

    A resampled difference is compared with the mean of all of them. Both counts are increased by one, as in
    sacreBLEU. p is 1 if there is no difference.
    """
    if not observed:
        return 1.0
    beyond = int(np.sum(np.abs(differences - differences.mean()) > abs(observed)))
    return (beyond + 1) / (len(differences) + 1)
