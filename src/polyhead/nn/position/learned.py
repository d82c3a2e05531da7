"""Learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.position.base import Position
from polyhead.registry import POSITION


@POSITION.register("learned")
class Learned(Position):
    """One learned vector for each position up to ``model.max_len``, added to the embeddings.

    A longer sequence is refused, so give ``max_len`` room.

    Equation: x_i + P_i,  P learned, (max_len, C)
    Paper: Gehring et al., 2017
    When: to compare with models that have it, as BERT and GPT-2
    """

    acts_on = "embeddings"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        table = torch.empty(shape.max_len, shape.d_model).normal_(std=shape.d_model**-0.5)
        self.weight = nn.Parameter(table)

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a position beyond the table is a UserError."""
        longest = x.size(1) if pos is None else int(pos.max()) + 1 if pos.numel() else 0
        if longest > len(self.weight):
            raise UserError(f"{longest} positions, but this model learned only max_len={len(self.weight)}")
        return x + (self.weight[: x.size(1)] if pos is None else self.weight[pos.clamp(min=0)])
