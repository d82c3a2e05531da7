"""Windows of equal length over a long text, as a function of (seed, epoch), and shards of their tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.nn.kv import arange_positions
from polyhead.nn.loss import IGNORE_INDEX


class SequenceShard(NamedTuple):
    """Which tokens of each row a rank has."""

    rank: int
    n_ranks: int

    def select(self, x: Tensor, fill: int = 0, dim: int = 1) -> Tensor:
        """The rank's part of x along ``dim``, after padding with ``fill``: (B, T) -> (B, 2 ⌈T / 2n⌉)."""
        n_chunks = 2 * self.n_ranks
        padding = (0, 0) * (x.dim() - 1 - dim) + (0, -x.size(dim) % n_chunks)
        chunks = F.pad(x, padding, value=fill).chunk(n_chunks, dim)
        return torch.cat([chunks[self.rank], chunks[n_chunks - 1 - self.rank]], dim)

    def select_positions(self, pos: Tensor | None, tokens: Tensor) -> Tensor:
        """The positions of the rank's tokens, those of full rows if ``pos`` is None: (B, T) -> (B, T')."""
        if pos is None:
            pos = arange_positions(tokens.size(1), tokens.device).expand_as(tokens)
        return self.select(pos, -1)


def join_shards(shards: Tensor, dim: int) -> Tensor:
    """The parts of all ranks in the order of the row: (n, ..., T', ...) -> (..., n T', ...), n T' at ``dim``.

    The inverse of ``SequenceShard.select``, but for its padding.
    """
    first, second = shards.chunk(2, dim + 1)
    return torch.cat([*first.unbind(), *reversed(second.unbind())], dim)


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
    bits = np.random.Generator(np.random.PCG64([seed, epoch]))
    return batch_starts(cut_windows(length, width, bits), batch_rows, bits)


def cut_windows(length: int, width: int, bits: np.random.Generator) -> IdArray:
    """The first token of every row of ``width`` of a text, from a random offset."""
    n_windows = count_windows(length, width)
    return np.arange(n_windows) * width + bits.integers(0, width + (length - 1) % width + 1)


def count_windows(length: int, width: int) -> int:
    """The rows of ``width`` that a text has after any offset; a UserError if there are none."""
    if (n := (length - 1) // width) < 2:
        raise UserError(
            f"{length} tokens of text are fewer than two rows of {width}; use more text or a "
            "smaller data.max_len"
        )
    return n - 1


def batch_starts(starts: IdArray, batch_rows: int, bits: np.random.Generator) -> list[IdArray]:
    """Shuffle the starts of rows in place and deal them out; rows that fill no batch are left out."""
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


def shard_windows(batch: TokenWindows, shard: SequenceShard) -> TokenWindows:
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
