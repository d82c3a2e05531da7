"""Split the tokens of each row over ranks, and join what the ranks computed of them.

Each rank has two of 2n equal chunks of a row, one from each end: rank r has the chunks r and 2n - 1 - r. With
a causal mask, where later tokens attend to more, all ranks thus have equal work (zigzag order).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.nn.kv import arange_positions


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
