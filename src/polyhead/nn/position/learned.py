"""Learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.errors import UserError
from polyhead.nn.position.base import Position
from polyhead.registry import POSITION


@POSITION.register("learned")
class Learned(Position):
    """One learned vector a position, up to max_len, added to the embeddings (Gehring et al., 2017)."""

    def __init__(self, d_model: int, n_heads: int, head_dim: int, max_len: int) -> None:
        super().__init__(d_model, n_heads, head_dim, max_len)
        self.weight = nn.Parameter(torch.empty(max_len, d_model).normal_(std=d_model**-0.5))

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a position beyond the table is a UserError."""
        longest = x.size(1) if pos is None else int(pos.max()) + 1 if pos.numel() else 0
        if longest > len(self.weight):
            raise UserError(f"{longest} positions, but this model learned only max_len={len(self.weight)}")
        return x + (self.weight[: x.size(1)] if pos is None else self.weight[pos.clamp(min=0)])
