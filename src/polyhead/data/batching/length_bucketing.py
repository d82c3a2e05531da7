"""Length bucketing: batches of similar row length within a token budget, a pure function of (seed, epoch).

The cost of a batch of n rows is n * (the longest side of all its rows). Padding is counted, so neither the
encoder nor the decoder ever gets more tokens than the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.stores.build_cache import IdArray

# Tokens of noise added to the length difference of a row's two sides before sorting. Without it every epoch
# has the same batches; with 1, on Multi30k, 40 % of the rows share a batch again, at a fill rate of 0.957
# instead of 0.968.
BLUR = 1.0


class LengthBucketSampler(NamedTuple):
    """Sampler of batches of rows with similar lengths, for any number of epochs."""

    source_lengths: IdArray  # (N,) length of each row in a batch, special tokens included
    target_lengths: IdArray  # (N,) the same for its other side, if it has one
    max_tokens: int  # token budget of a batch
    seed: int

    def batch_rows(self, rows: IdArray, epoch: int = 0) -> list[IdArray]:
        """As ``epoch_batches``, of these rows; a row can come several times."""
        source, target = self.source_lengths[rows], self.target_lengths[rows]
        selected = self._replace(source_lengths=source, target_lengths=target)
        return [rows[batch] for batch in selected.epoch_batches(epoch)]

    def epoch_batches(self, epoch: int = 0) -> list[IdArray]:
        """The row numbers of every batch, in order; a row that exceeds ``max_tokens`` is a UserError."""
        return plan_epoch(
            self.source_lengths, self.target_lengths, max_tokens=self.max_tokens, seed=self.seed, epoch=epoch
        )

    def largest_batch(self) -> IdArray:
        """The batch that needs the most memory; no epoch has a larger one."""
        batches = self.epoch_batches()
        return batches[most_expensive(batches, self.source_lengths, self.target_lengths)]

    def describe(self) -> str:
        """One line about the batches of an epoch."""
        batches = self.epoch_batches()
        fill = fill_rate(batches, self.source_lengths, self.target_lengths)
        return describe_batches(len(batches), fill)


def describe_batches(n_batches: int, fill: float) -> str:
    """One line about an epoch: the number of batches and the fraction of their tokens that is not padding."""
    return tr(
        "{count:,} batches per epoch, {fill:.1%} of their tokens are not padding", count=n_batches, fill=fill
    )


def plan_epoch(
    source_lengths: IdArray, target_lengths: IdArray, *, max_tokens: int, seed: int, epoch: int
) -> list[IdArray]:
    """The row numbers of each batch, one array per batch; every row is in exactly one batch.

    Lengths include special tokens. Rows are sorted by their longest side, then by the difference of the sides
    with noise (``BLUR``), and cut where the budget ends; the batches are shuffled. So every epoch has the
    same number of batches, with other rows in them.
    """
    source, target = np.asarray(source_lengths), np.asarray(target_lengths)
    longest = np.maximum(source, target)
    if len(longest) and longest.max() > max_tokens:
        row = int(longest.argmax())
        raise UserError(
            f"max_tokens is {max_tokens}, but row {row + 1} alone has {longest[row]} tokens; "
            f"set train.max_tokens to {longest[row]} or more, or data.max_len to {max_tokens} or less"
        )
    bits = _bit_generator(seed, epoch)
    uniform = (bits.random_raw(len(longest)) >> np.uint64(11)) * 2.0**-53
    difference = source - target + BLUR * (2 * uniform - 1)
    # alternate the direction, so that the difference does not jump where the length changes
    order = np.lexsort((np.where(longest % 2 == 0, difference, -difference), longest))
    batches = _cut_batches(order, longest[order], max_tokens)
    return [batches[i] for i in np.argsort(bits.random_raw(len(batches)), kind="stable")]


def plan_eval_batches(source_lengths: IdArray, target_lengths: IdArray, batch_tokens: int) -> list[IdArray]:
    """Plan the batches of an evaluation: rows sorted by length, in order.

    A row longer than ``batch_tokens`` is a batch by itself.
    """
    longest = np.maximum(source_lengths, target_lengths)
    order = np.lexsort((source_lengths - target_lengths, longest))
    n_short = int((longest <= batch_tokens).sum())
    short_rows, long_rows = order[:n_short], order[n_short:]
    return [*_cut_batches(short_rows, longest[short_rows], batch_tokens), *long_rows[:, None]]


def fill_rate(batches: Sequence[IdArray], source_lengths: IdArray, target_lengths: IdArray) -> float:
    """The fraction of the cells of the batches, both sides, that is not padding."""
    used = sum(int(source_lengths[rows].sum() + target_lengths[rows].sum()) for rows in batches)
    cells = sum(len(rows) * int(source_lengths[rows].max() + target_lengths[rows].max()) for rows in batches)
    return used / cells if cells else 1.0


def most_expensive(batches: Sequence[IdArray], source_lengths: IdArray, target_lengths: IdArray) -> int:
    """Index of the batch that needs the most memory: if it fits, all others do."""
    longest = np.maximum(source_lengths, target_lengths)
    costs = [(len(rows) * int(longest[rows].max()), int(longest[rows].max())) for rows in batches]
    return max(range(len(costs)), key=costs.__getitem__)


def shard_rows(rows: IdArray, n: int) -> list[IdArray]:
    """Distribute the rows of a batch over n processes round-robin; no shard is empty.

    Round-robin keeps the lengths even.
    """
    return [rows[rank::n] for rank in range(min(n, len(rows)))]


class EpochRows(NamedTuple):
    """Rows of a batch whose content depends on the epoch."""

    epoch: int
    rows: IdArray  # (B,) row numbers in the store

    def shard(self, n: int) -> list[EpochRows]:
        """Split into at most n shards, rows in turn; no shard is empty."""
        return [EpochRows(self.epoch, rows) for rows in shard_rows(self.rows, n)]


def _bit_generator(seed: int, epoch: int) -> np.random.BitGenerator:
    # raw bits, because numpy guarantees the same ones in every version, and does not for permutations
    return np.random.Philox(np.random.SeedSequence([seed, epoch]))


def _cut_batches(order: IdArray, longest_sides: IdArray, max_tokens: int) -> list[IdArray]:
    """Cut rows, sorted by their longest sides, into batches, each as large as the budget allows."""
    batches, start = [], 0
    while start < len(order):
        reach = max_tokens // int(longest_sides[start])  # no batch from here can have more rows
        longest = longest_sides[start : start + reach]
        rows = int(np.searchsorted(longest * np.arange(1, len(longest) + 1), max_tokens, side="right"))
        batches.append(order[start : start + rows])
        start += rows
    return batches
