"""Rows of token ids to the tensors of one batch. Shapes: B rows, S longest source, T longest target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.data.store import PairStore
from polyhead.text.tokenizer import Tokenizer

Ints = NDArray[Any]
IGNORED = -100  # the label of padding: cross entropy leaves it out


class Batch(NamedTuple):
    """What one step of training reads."""

    source: Tensor  # (B, S) int64: ids and the end
    source_pos: Tensor | None  # (B, S) int64: 0, 1, ... and -1 at padding; None if no row is padded
    target: Tensor  # (B, T) int64: the start and ids, what the decoder reads
    labels: Tensor  # (B, T) int64: ids and the end, what it must say; -100 at padding
    n_tokens: int  # labels that count

    @property
    def target_pos(self) -> Tensor:
        """(B, T) int64: 0, 1, ... and -1 at padding."""
        return torch.arange(self.labels.size(1), device=self.labels.device).masked_fill(self.labels == IGNORED, -1)


def collate(store: PairStore, rows: Ints | Sequence[int], tokenizer: Tokenizer) -> Batch:
    """The batch of some rows of a store."""
    rows = np.asarray(rows)
    sources = _gather(store.source_ids, store.source_offsets, rows)
    targets = _gather(store.target_ids, store.target_offsets, rows)
    return _batch(sources, targets, tokenizer)


def collate_pairs(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Batch:
    """The batch of pairs of ids that are in no store."""
    return _batch(_join(sources), _join(targets), tokenizer)


def collate_sources(sources: Sequence[Sequence[int]], tokenizer: Tokenizer) -> tuple[Tensor, Tensor | None]:
    """Sources alone, as translation reads them: ids and the end (B, S), and their positions or None."""
    ids, lengths = _join(sources)
    source = torch.from_numpy(_fill(ids, lengths, tokenizer.pad_id, end=tokenizer.eos_id))
    return source, _positions(lengths + 1)


def _batch(sources: tuple[Ints, Ints], targets: tuple[Ints, Ints], tokenizer: Tokenizer) -> Batch:
    pad, (ids, lengths) = tokenizer.pad_id, targets
    return Batch(
        source=torch.from_numpy(_fill(*sources, pad, end=tokenizer.eos_id)),
        source_pos=_positions(sources[1] + 1),
        target=torch.from_numpy(_fill(ids, lengths, pad, start=tokenizer.bos_id)),
        labels=torch.from_numpy(_fill(ids, lengths, IGNORED, end=tokenizer.eos_id)),
        n_tokens=int(lengths.sum()) + len(lengths),
    )


def _gather(flat: Ints, offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The ids of the rows one after another, and how many each has."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    shift = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return flat[shift + np.arange(len(shift))], lengths


def _join(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    flat = np.array([i for row in rows for i in row], dtype=np.int64)
    return flat, np.array([len(row) for row in rows], dtype=np.int64)


def _fill(ids: Ints, lengths: Ints, padding: int, *, start: int | None = None, end: int | None = None) -> NDArray[np.int64]:
    """Rows of equal width from ids one after another: [start] ids [end] padding ..."""
    width = int(lengths.max(initial=0)) + 1
    out = np.full((len(lengths), width), padding, dtype=np.int64)
    shift = int(start is not None)
    columns = np.arange(width) - shift
    out[(columns >= 0) & (columns < lengths[:, None])] = ids  # cells in row order, which is the order of the ids
    if start is not None:
        out[:, 0] = start
    if end is not None:
        out[np.arange(len(lengths)), lengths + shift] = end
    return out


def _positions(lengths: Ints) -> Tensor | None:
    columns = np.arange(int(lengths.max(initial=0)))
    padded = columns >= lengths[:, None]
    return torch.from_numpy(np.where(padded, -1, columns)) if padded.any() else None
