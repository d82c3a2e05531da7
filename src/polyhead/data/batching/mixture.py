"""Which texts of several corpora an epoch has: a pure function of (seed, epoch).

An epoch has as many texts as all corpora together. Their shares are p_i ∝ w_i n_i^(1/T), for n_i texts of
weight w_i (Arivazhagan et al., 2019; mBART, Liu et al., 2020, with α = 1/T). So with equal weights at T = 1
an epoch has each text once. Of corpus i, epoch e has the texts from e k_i to (e + 1) k_i of an endless
sequence of passes over it, each in its own random order: no text comes again before all others of its corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from polyhead.data.batching.length_bucketing import LengthBucketSampler
from polyhead.data.batching.packing import Segments, count_segments, cut_segments
from polyhead.data.batching.token_windows import batch_starts, count_windows, cut_windows
from polyhead.data.stores.build_cache import IdArray

_ORDER_KEY, _OFFSET_KEY = 4, 5  # first element of a random key: what is drawn


class Mixture(NamedTuple):
    """Corpora and how often their texts are used."""

    weights: tuple[float, ...]
    temperature: float
    seed: int

    def count_texts(self, sizes: Sequence[int]) -> list[int]:
        """The number of texts of each corpus in an epoch, for corpora of these sizes; the sum is the same.

        Shares are rounded down; the texts that are left go to the largest remainders.
        """
        # both relative to the largest, so that no power overflows
        scores = [
            weight / max(self.weights) * (size / max(sizes)) ** (1 / self.temperature)
            for weight, size in zip(self.weights, sizes, strict=True)
        ]
        shares = [sum(sizes) * score / sum(scores) for score in scores]
        counts = [int(share) for share in shares]
        by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - shares[i], i))
        for i in by_remainder[: sum(sizes) - sum(counts)]:
            counts[i] += 1
        return counts

    def select(self, sizes: Sequence[int], epoch: int, read_pass: Callable[[int, int], IdArray]) -> IdArray:
        """The texts of an epoch, corpus by corpus; ``read_pass(corpus, number)`` has those of one pass."""
        selected = []
        for corpus, (size, count) in enumerate(zip(sizes, self.count_texts(sizes), strict=True)):
            start, stop = epoch * count, (epoch + 1) * count
            for number in range(start // size, -(-stop // size)):
                bits = np.random.Philox(np.random.SeedSequence([self.seed, _ORDER_KEY, corpus, number]))
                order = np.argsort(bits.random_raw(size), kind="stable")
                rows = order[max(start - number * size, 0) : stop - number * size]
                selected.append(read_pass(corpus, number)[rows])
        return np.concatenate(selected)

    def pass_rng(self, corpus: int, number: int) -> np.random.Generator:
        """Random numbers of one pass over a corpus."""
        return np.random.Generator(np.random.PCG64([self.seed, _OFFSET_KEY, corpus, number]))


class MixedLengthSampler(NamedTuple):
    """Batches of rows with similar lengths, of the rows that an epoch of a mixture has."""

    sampler: LengthBucketSampler  # of all rows
    mixture: Mixture
    starts: IdArray  # the first row of each corpus, and the number of rows: (N + 1,)

    def epoch_batches(self, epoch: int = 0) -> list[IdArray]:
        """The row numbers of every batch, in order. A row can come several times."""
        rows = np.sort(
            self.mixture.select(
                np.diff(self.starts).tolist(),
                epoch,
                lambda corpus, _: np.arange(self.starts[corpus], self.starts[corpus + 1]),
            )
        )
        return self.sampler.batch_rows(rows, epoch)


def plan_mixed_windows(
    mixture: Mixture, starts: IdArray, width: int, batch_rows: int, epoch: int
) -> list[IdArray]:
    """As ``plan_windows``, of corpora that begin at ``starts`` of one store; each pass cuts a text elsewhere.

    ``starts`` ends with the length of the store.
    """
    lengths = np.diff(starts).tolist()

    def cut_pass(corpus: int, number: int) -> IdArray:
        return starts[corpus] + cut_windows(lengths[corpus], width, mixture.pass_rng(corpus, number))

    sizes = [count_windows(length, width) for length in lengths]
    windows = mixture.select(sizes, epoch, cut_pass)
    return batch_starts(windows, batch_rows, np.random.Generator(np.random.PCG64([mixture.seed, epoch])))


def mix_segments(mixture: Mixture, corpora: Sequence[Segments], max_len: int, epoch: int) -> Segments:
    """The segments of an epoch, of the documents of each corpus; each pass cuts long ones elsewhere.

    A text of a mixture is a segment. A pass has as many as the worst offset gives; of those that are empty
    the epoch has none.
    """
    sizes = [count_segments(documents, max_len) for documents in corpora]

    def cut_pass(corpus: int, number: int) -> IdArray:
        segments = np.stack(cut_segments(corpora[corpus], max_len, mixture.pass_rng(corpus, number)), 1)
        return np.pad(segments, ((0, sizes[corpus] - len(segments)), (0, 0)))

    starts, lengths = mixture.select(sizes, epoch, cut_pass).T
    return Segments(starts, lengths).select(np.flatnonzero(lengths))
