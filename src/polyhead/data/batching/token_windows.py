"""Windows of equal length over a long text, as a pure function of (seed, epoch)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.batching.sequence_shards import SequenceShard
from polyhead.data.stores.arrays import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.nn.loss import IGNORE_INDEX


class TokenWindows(NamedTuple):
    """A batch of text for next-token prediction."""

    tokens: Tensor  # (B, T) int64
    # (B, T) int64: from 0 in each document, -1 at padding; None for a single document without padding
    pos: Tensor | None
    labels: Tensor  # (B, T) int64: the next token, -100 where there is no label
    # whether a row may contain several documents, or is a part of one; else positions mark only padding
    has_documents: bool = False


def plan_windows(length: int, width: int, batch_rows: int, *, seed: int, epoch: int) -> list[IdArray]:
    """The first token of every row of an epoch, ``batch_rows`` rows per batch, in random order.

    Windows of ``width`` tokens, and the next one as last label, are contiguous from a random offset, so every
    epoch cuts the text elsewhere and no token occurs twice. Rows that fill no batch are left out of the
    epoch.
    """
    n = (length - 1) // width
    if n < 2:
        raise UserError(
            f"{length} tokens of text are fewer than two rows of {width}; use more text or a "
            "smaller data.max_len"
        )
    bits = np.random.Generator(np.random.PCG64([seed, epoch]))
    starts = np.arange(n - 1) * width + bits.integers(0, width + (length - 1) % width + 1)
    bits.shuffle(starts)
    return [
        starts[i : i + batch_rows]
        for i in range(0, len(starts) - len(starts) % batch_rows or len(starts), batch_rows)
    ]


def collate_windows(store: TokenStore, starts: IdArray, width: int, *, has_documents: bool) -> TokenWindows:
    """Collate the windows at ``starts``; with ``has_documents`` positions restart at 0 in each document."""
    positions = np.asarray(starts)[:, None] + np.arange(width + 1)
    cells = torch.from_numpy(store.ids[np.minimum(positions, len(store) - 1)].astype(np.int64))
    ignored = positions[:, 1:] >= len(store)
    if store.has_document_prefix:
        ignored |= _document_positions(store.document_starts, positions)[:, 1:].numpy() == 0
    labels = cells[:, 1:].masked_fill(torch.from_numpy(ignored), IGNORE_INDEX)
    pos = _document_positions(store.document_starts, positions[:, :-1]) if has_documents else None
    return TokenWindows(cells[:, :-1], pos, labels, has_documents)


def split_windows(batch: TokenWindows, shard: SequenceShard) -> TokenWindows:
    """One rank's part of the tokens of each row."""
    return TokenWindows(
        shard.select(batch.tokens),
        shard.select_positions(batch.pos, batch.tokens),
        shard.select(batch.labels, IGNORE_INDEX),
        has_documents=True,
    )


def make_dummy_windows(has_documents: bool = False) -> TokenWindows:
    """One padding token without a label: a batch for a rank without rows."""
    tokens, padding = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    return TokenWindows(tokens, padding, torch.full((1, 1), IGNORE_INDEX), has_documents)


def _document_positions(document_starts: IdArray, positions: IdArray) -> Tensor:
    """Distance of each position from the start of its document or of the row, whichever is later."""
    first = document_starts[np.searchsorted(document_starts, positions, side="right") - 1]
    return torch.from_numpy((positions - np.maximum(first, positions[:, :1])).astype(np.int64))
