"""Which tokens translate which, learned from pairs of texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Lexicon(NamedTuple):
    """t(target | source) of tokens that stand in one pair at least, sorted by source, then target."""

    source: Ints
    target: Ints
    probability: NDArray[Any]

    def best(self, n: int, vocab_size: int) -> tuple[Ints, Ints]:
        """The n likeliest translations of each token, likeliest first: where each token's begin (V + 1,), and all of them."""
        order = np.lexsort((self.target, -self.probability, self.source))
        source = self.source[order]
        rank = np.arange(len(source)) - np.searchsorted(source, source)
        kept = order[(rank < n) & (source < vocab_size)]
        return np.searchsorted(self.source[kept], np.arange(vocab_size + 1)), self.target[kept]


def lexicon(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], vocab_size: int, rounds: int = 4
) -> Lexicon:
    """IBM Model 1 (Brown et al., 1993, sec. 4.1): every target token comes from one source token of its pair, or from none.

    So many rounds of expectation-maximisation from equal probabilities; the one that stands for none is number V.
    """
    cells = [_cells(source, target, vocab_size) for source, target in zip(sources, targets, strict=True)]
    keys, cell = np.unique(np.concatenate([np.empty(0, np.int64), *cells]), return_inverse=True)
    # target tokens one after the other, each with the source tokens of its pair beside each other
    widths = np.repeat([len(source) + 1 for source in sources], [len(target) for target in targets])
    begins = np.cumsum(widths) - widths
    source, target = keys // vocab_size, keys % vocab_size
    probability = np.ones(len(keys))
    for _ in range(rounds if len(keys) else 0):
        share = probability[cell]
        share /= np.repeat(np.add.reduceat(share, begins), widths)
        counts = np.bincount(cell, share, len(keys))
        probability = counts / np.bincount(source, counts)[source]
    return Lexicon(source, target, probability)


def _cells(source: Sequence[int], target: Sequence[int], vocab_size: int) -> Ints:
    """Each token of a target beside each of its source and the one that stands for none, as one number each."""
    beside = np.array([*source, vocab_size], np.int64) * vocab_size
    return (np.array(target, np.int64)[:, None] + beside).ravel()
