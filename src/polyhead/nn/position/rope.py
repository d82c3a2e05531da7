"""Rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.nn.position.base import Position
from polyhead.registry import POSITION


@POSITION.register("rope")
class Rope(Position):
    """Turn each pair of features of a query or key by an angle that grows with its position, so that their
    product depends on the distance alone (Su et al., 2021, eq. 34).

    Half-split layout: feature j turns with feature j + head_dim / 2, as in Llama's checkpoints.
    """

    def __init__(
        self, d_model: int, n_heads: int, head_dim: int, max_len: int, *, theta: float = 10000.0
    ) -> None:
        super().__init__(d_model, n_heads, head_dim, max_len)
        assert head_dim % 2 == 0
        self.register_buffer(
            "rate", theta ** (-torch.arange(0, head_dim, 2).float() / head_dim), persistent=False
        )
        self.rate: Tensor

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, H, T, D), (B, T) -> (B, H, T, D)."""
        pos = torch.arange(x.size(2), device=x.device)[None] if pos is None else pos
        angle = pos[:, None, :, None] * self.rate.float()  # fp32: bf16 cannot count past 256
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
