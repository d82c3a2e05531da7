"""Token translation probabilities, learned from sentence pairs alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.array_types import Ints


class Lexicon(NamedTuple):
    """t(target | source) of tokens that occur in at least one pair, sorted by source, then target."""

    source: Ints
    target: Ints
    probability: NDArray[Any]

    def top_targets(self, n: int, vocab_size: int) -> tuple[Ints, Ints]:
        """The n most likely translations of each token, best first: offsets (V + 1,), and all of them."""
        order = np.lexsort((self.target, -self.probability, self.source))
        source = self.source[order]
        rank = np.arange(len(source)) - np.searchsorted(source, source)
        selection = order[(rank < n) & (source < vocab_size)]
        return np.searchsorted(self.source[selection], np.arange(vocab_size + 1)), self.target[selection]


def train_ibm_model1(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], vocab_size: int, iterations: int = 4
) -> Lexicon:
    """IBM Model 1 (Brown et al., 1993, sec. 4.1): each target token comes from one source token or from none.

    ``iterations`` rounds of expectation-maximisation from equal probabilities; the empty source token has
    number V.
    """
    cells = [_pair_cells(source, target, vocab_size) for source, target in zip(sources, targets, strict=True)]
    keys, cell = np.unique(np.concatenate([np.empty(0, np.int64), *cells]), return_inverse=True)
    # target tokens one after the other, each with the source tokens of its pair
    widths = np.repeat([len(source) + 1 for source in sources], [len(target) for target in targets])
    offsets = np.cumsum(widths) - widths
    source, target = keys // vocab_size, keys % vocab_size
    probability = np.ones(len(keys))
    for _ in range(iterations if len(keys) else 0):
        share = probability[cell]
        share /= np.repeat(np.add.reduceat(share, offsets), widths)
        counts = np.bincount(cell, share, len(keys))
        probability = counts / np.bincount(source, counts)[source]
    return Lexicon(source, target, probability)


def _pair_cells(source: Sequence[int], target: Sequence[int], vocab_size: int) -> Ints:
    """Pairs of each target token and each source token or the empty one, as one number each."""
    source_keys = np.array([*source, vocab_size], np.int64) * vocab_size
    return (np.array(target, np.int64)[:, None] + source_keys).ravel()
