"""Collate rows of token ids into the tensors of one batch.

Shapes: B rows, S longest source, T longest target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.data.batching.token_windows import SequenceShard
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.pair_store import Pair, PairStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.token_split import TokenSplitter
from polyhead.tokenizers.tokenizer import Tokenizer


class PairBatch(NamedTuple):
    """One batch of sentence pairs for a training step."""

    source: Tensor  # (B, S) int64: ids and eos, or the special tokens of the source template
    source_pos: Tensor | None  # (B, S) int64: 0, 1, ... and -1 at padding; None if no row is padded
    target: Tensor  # (B, T) int64: decoder input: decoder start, opening tokens if there are any, ids
    labels: Tensor  # (B, T) int64: opening tokens, ids and eos; -100 at padding
    n_tokens: int  # number of labels that are not padding
    shard_pos: Tensor | None = None  # (B, T) int64: positions of the target, if it is a part of all tokens
    links: Tensor | None = None  # (B, T, S): distributions over the source that guided alignment teaches

    @property
    def target_pos(self) -> Tensor:
        """(B, T) int64: 0, 1, ... and -1 at padding."""
        if self.shard_pos is not None:
            return self.shard_pos
        labels = self.labels
        return torch.arange(labels.size(1), device=labels.device).masked_fill(labels == IGNORE_INDEX, -1)


def collate(
    store: PairStore,
    rows: IdArray | Sequence[int],
    tokenizer: Tokenizer,
    splitters: Sequence[TokenSplitter] = (),
    augment: Callable[[IdArray | Sequence[int], list[Pair]], list[Pair]] | None = None,
) -> PairBatch:
    """Collate rows of a store, as ``augment`` changes their pairs.

    ``splitters`` split some source and target tokens into two shorter ones, at random in each call.
    """
    if augment:
        sources, targets = map(concat_rows, zip(*augment(rows, store.read_pairs(rows)), strict=True))
    else:
        sources = _gather(store.source_ids, store.source_offsets, np.asarray(rows))
        targets = _gather(store.target_ids, store.target_offsets, np.asarray(rows))
    if splitters:
        sides = zip((sources, targets), splitters, strict=True)
        sources, targets = (split(ids, lengths, store.max_len - 1) for (ids, lengths), split in sides)
    return _make_batch(sources, targets, tokenizer)


def shard_pair_tokens(batch: PairBatch, shard: SequenceShard) -> PairBatch:
    """One rank's part of the tokens of both sides."""
    labels = shard.select(batch.labels, IGNORE_INDEX)
    return PairBatch(
        shard.select(batch.source),
        shard.select_positions(batch.source_pos, batch.source),
        shard.select(batch.target),
        labels,
        int((labels != IGNORE_INDEX).sum()),
        shard.select(batch.target_pos, -1),
    )


def make_dummy_pairs() -> PairBatch:
    """One pair of a padding token each, without a label: a batch for a rank without rows."""
    tokens, padding = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    return PairBatch(tokens, padding, tokens, torch.full((1, 1), IGNORE_INDEX), n_tokens=0)


def collate_pairs(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> PairBatch:
    """Collate pairs of token ids that are not in a store."""
    return _make_batch(concat_rows(sources), concat_rows(targets), tokenizer)


def _make_batch(
    sources: tuple[IdArray, IdArray], targets: tuple[IdArray, IdArray], tokenizer: Tokenizer
) -> PairBatch:
    sides, (ids, lengths) = tokenizer.seq2seq_template, targets
    start = (sides.decoder_start_id, *sides.opening_ids)
    source = fill_rows(*sources, tokenizer.pad_id, sides.source_prefix, sides.source_suffix)
    target = fill_rows(ids, lengths, tokenizer.target_tokenizer.pad_id, start)
    labels = fill_rows(ids, lengths, IGNORE_INDEX, sides.opening_ids, (sides.eos_id,))
    return PairBatch(
        torch.from_numpy(source),
        make_positions(sources[1] + len(sides.source_prefix) + len(sides.source_suffix)),
        torch.from_numpy(target),
        torch.from_numpy(labels),
        n_tokens=int(lengths.sum()) + len(lengths) * len(start),
    )


def _gather(flat: IdArray, offsets: IdArray, rows: IdArray) -> tuple[IdArray, IdArray]:
    """(ids of the rows, concatenated; length of each row)."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    shift = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return flat[shift + np.arange(len(shift))], lengths


def concat_rows(rows: Sequence[IdArray | Sequence[int]]) -> tuple[IdArray, IdArray]:
    """(ids of the rows, concatenated; length of each row)."""
    flat = np.concatenate([[], *rows], dtype=np.int64, casting="unsafe")
    return flat, np.array([len(row) for row in rows], dtype=np.int64)


def fill_rows(
    ids: IdArray,
    lengths: IdArray,
    pad_value: int,
    prefix_ids: Sequence[int] = (),
    suffix_ids: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Pad concatenated ids to rows of equal width, each as ``prefix_ids``, ids, ``suffix_ids``, padding."""
    shift = len(prefix_ids)
    width = int(lengths.max(initial=0)) + shift + len(suffix_ids)
    out = np.full((len(lengths), width), pad_value, dtype=np.int64)
    columns = np.arange(width) - shift
    # cells in row order, which is the order of the ids
    out[(columns >= 0) & (columns < lengths[:, None])] = ids
    out[:, :shift] = prefix_ids
    for place, token in enumerate(suffix_ids, shift):
        out[np.arange(len(lengths)), lengths + place] = token
    return out


def make_positions(lengths: IdArray) -> Tensor | None:
    """Positions of padded rows: 0, 1, ... and -1 at padding; None if no row is padded."""
    columns = np.arange(int(lengths.max(initial=0)))
    padded = columns >= lengths[:, None]
    return torch.from_numpy(np.where(padded, -1, columns)) if padded.any() else None
