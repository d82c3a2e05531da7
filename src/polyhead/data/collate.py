"""Rows of token ids to the tensors of one batch. Shapes: B rows, S longest source, T longest target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.data.arrays import Ints
from polyhead.data.store import PairStore
from polyhead.nn.loss import IGNORED
from polyhead.text.halves import Halves
from polyhead.text.tokenizer import Tokenizer


class Batch(NamedTuple):
    """What one step of training reads."""

    source: Tensor  # (B, S) int64: ids and the end, or what else stands around a source
    source_pos: Tensor | None  # (B, S) int64: 0, 1, ... and -1 at padding; None if no row is padded
    target: Tensor  # (B, T) int64: the start, its opening if it has one and ids, what the decoder reads
    labels: Tensor  # (B, T) int64: the opening, ids and the end, what it must say; -100 at padding
    n_tokens: int  # labels that count

    @property
    def target_pos(self) -> Tensor:
        """(B, T) int64: 0, 1, ... and -1 at padding."""
        return torch.arange(self.labels.size(1), device=self.labels.device).masked_fill(
            self.labels == IGNORED, -1
        )


def collate(store: PairStore, rows: Ints | Sequence[int], tokenizer: Tokenizer) -> Batch:
    """The batch of some rows of a store."""
    return _batch(*_sides(store, rows), tokenizer)


def collate_split(store: PairStore, rows: Ints, tokenizer: Tokenizer, halves: Sequence[Halves]) -> Batch:
    """The same with tokens of sources and targets written as two shorter ones, other ones at each call."""
    sides = zip(_sides(store, rows), halves, strict=True)
    sources, targets = (split(ids, lengths, store.max_len - 1) for (ids, lengths), split in sides)
    return _batch(sources, targets, tokenizer)


def collate_pairs(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> Batch:
    """The batch of pairs of ids that are in no store."""
    return _batch(_join(sources), _join(targets), tokenizer)


def _batch(sources: tuple[Ints, Ints], targets: tuple[Ints, Ints], tokenizer: Tokenizer) -> Batch:
    sides, (ids, lengths) = tokenizer.sides, targets
    return Batch(
        source=torch.from_numpy(_fill(*sources, tokenizer.pad_id, sides.before, sides.after)),
        source_pos=_positions(sources[1] + len(sides.before) + len(sides.after)),
        target=torch.from_numpy(_fill(ids, lengths, tokenizer.pad_id, (sides.start, *sides.opening), ())),
        labels=torch.from_numpy(_fill(ids, lengths, IGNORED, sides.opening, (sides.end,))),
        n_tokens=int(lengths.sum()) + len(lengths) * (len(sides.opening) + 1),
    )


def _sides(store: PairStore, rows: Ints | Sequence[int]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    rows = np.asarray(rows)
    return (
        _gather(store.source_ids, store.source_offsets, rows),
        _gather(store.target_ids, store.target_offsets, rows),
    )


def _gather(flat: Ints, offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The ids of the rows one after another, and how many each has."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    shift = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return flat[shift + np.arange(len(shift))], lengths


def _join(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    flat = np.array([i for row in rows for i in row], dtype=np.int64)
    return flat, np.array([len(row) for row in rows], dtype=np.int64)


def _fill(
    ids: Ints, lengths: Ints, padding: int, before: Sequence[int], after: Sequence[int]
) -> NDArray[np.int64]:
    """Rows of equal width from ids one after another: before ids after padding ..."""
    shift = len(before)
    width = int(lengths.max(initial=0)) + shift + len(after)
    out = np.full((len(lengths), width), padding, dtype=np.int64)
    columns = np.arange(width) - shift
    # cells in row order, which is the order of the ids
    out[(columns >= 0) & (columns < lengths[:, None])] = ids
    out[:, :shift] = before
    for place, token in enumerate(after, shift):
        out[np.arange(len(lengths)), lengths + place] = token
    return out


def _positions(lengths: Ints) -> Tensor | None:
    columns = np.arange(int(lengths.max(initial=0)))
    padded = columns >= lengths[:, None]
    return torch.from_numpy(np.where(padded, -1, columns)) if padded.any() else None
