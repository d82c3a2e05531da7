"""Learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.position.base import Position, beyond
from polyhead.registry import POSITION


@POSITION.register("learned")
class Learned(Position):
    """One learned vector for each position up to ``model.max_len``, added to the embeddings.

    A longer sequence is refused, so give ``max_len`` room.

    Equation: x_i + P_{i + offset},  P learned, (max_len + offset, C)
    Paper: Gehring et al., 2017
    When: to compare with models that have it, as BERT and GPT-2
    Options:
      offset: rows before that of the first position, which nobody reads; 2 in OPT, BART and RoBERTa
    """

    def __init__(self, shape: Shape, *, offset: int = 0) -> None:
        super().__init__(shape)
        if offset < 0:
            raise UserError(f"offset of learned positions counts rows, 0 or more; here it is {offset}")
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(shape.max_len + offset, shape.d_model))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a position beyond the table is a UserError."""
        used = self.weight[self.offset :]
        if beyond(x, pos, len(used)):
            longest = x.size(1) if pos is None else int(pos.max()) + 1
            raise UserError(f"{longest} positions, but this model learned only max_len={len(used)}")
        return x + (used[: x.size(1)] if pos is None else used[pos.clamp(min=0)])
