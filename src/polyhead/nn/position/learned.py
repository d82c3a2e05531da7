"""Learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.nn.position.base import Position, exceeds_table
from polyhead.nn.tensor_split import TensorSplit


@POSITION.register("learned")
class LearnedPosition(Position):
    """One learned vector for each position up to ``model.max_len``, added to the embeddings.

    A longer sequence is an error, so choose ``max_len`` generously.

    Equation: x_i + P_{i + offset},  P learned, (max_len + offset, C)
    Paper: Gehring et al., 2017
    When: to match models that use it, such as BERT and GPT-2
    Options:
      offset: unused rows before that of the first position; 2 in OPT, BART and RoBERTa
    """

    tensor_split = TensorSplit(replicated_weights=("weight",))

    def __init__(self, shape: AttentionShape, *, offset: int = 0) -> None:
        super().__init__(shape)
        if offset < 0:
            raise UserError(f"offset of learned positions must be 0 or more rows, got {offset}")
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(shape.max_len + offset, shape.d_model))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a position beyond the table is a UserError."""
        used = self.weight[self.offset :]
        if exceeds_table(x, pos, len(used)):
            longest = x.size(1) if pos is None else int(pos.max()) + 1
            raise UserError(f"{longest} positions, but this model has only max_len={len(used)}")
        return x + (used[: x.size(1)] if pos is None else used[pos.clamp(min=0)])
