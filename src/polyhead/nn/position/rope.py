"""Rotary positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.position.base import Position
from polyhead.registry import POSITION


@POSITION.register("rope")
class Rope(Position):
    """Turn each pair of features of a query or key by an angle that grows with its position, so that their
    product depends on the distance alone (Su et al., 2021, eq. 34).

    Half-split layout: feature j turns with feature j + head_dim / 2, as in Llama's checkpoints.
    """

    acts_on = "heads"

    def __init__(self, shape: Shape, *, theta: float = 10000.0) -> None:
        super().__init__(shape)
        d_model, n_heads, head_dim = shape.d_model, shape.n_heads, shape.head_dim
        if head_dim % 2:
            near = " or ".join(str(even) for even in (head_dim - 1, head_dim + 1) if even)
            raise UserError(
                f"head_dim must be even for rope, which turns pairs of features; here it is {head_dim} "
                f"(d_model {d_model}, n_heads {n_heads}); the nearest head_dim is {near}"
            )
        self.theta, self.head_dim = theta, head_dim
        self.register_buffer("rate", self._rates(), persistent=False)
        self.rate: Tensor

    def _rates(self) -> Tensor:
        return self.theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rope:
        """Other devices, but always fp32: rates rounded to bf16 are off by radians a thousand tokens later."""
        super()._apply(fn, recurse)
        if self.rate.dtype != torch.float32:
            self.rate = self._rates().to(self.rate.device)
        return self

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, H, T, D), (B, T) -> (B, H, T, D)."""
        pos = torch.arange(x.size(2), device=x.device)[None] if pos is None else pos
        angle = pos[:, None, :, None] * self.rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
