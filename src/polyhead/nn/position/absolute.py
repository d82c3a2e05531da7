"""Absolute positions, added to the embeddings: learned and sinusoidal."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeInt, PositiveFloat
from polyhead.core.registry import POSITION
from polyhead.nn.position.base import Position, count_positions
from polyhead.nn.shard_plan import ShardPlan


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

    shard_plan = ShardPlan(replicated_weights=("weight",))

    def __init__(self, shape: AttentionShape, *, offset: NonNegativeInt = 0) -> None:
        super().__init__(shape)
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(shape.max_len + offset, shape.d_model))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)

    def reserve(self, length: int) -> None:
        """Raise a UserError if the table has fewer positions."""
        if length > (max_len := len(self.weight) - self.offset):
            raise UserError(f"{length} positions, but this model has only max_len={max_len}")

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a position beyond the table is a UserError."""
        self.reserve(count_positions(x, pos))
        used = self.weight[self.offset :]
        return x + (used[: x.size(1)] if pos is None else used[pos.clamp(min=0)])


SinusoidalLayout = Literal["interleaved", "halves"]
"""Which features are sines.

interleaved: every second one, as in the paper; halves: the first half, as in tensor2tensor and Marian.
"""

_MAX_FIRST_ROWS = 1 << 16  # of the table, which grows when it is needed


@POSITION.register("sinusoidal")
class SinusoidalPosition(Position):
    """Sines and cosines of falling frequencies, added to the embeddings.

    Nothing is learned, and any length works: the table is computed in float64 and grows as needed. The scheme
    of the original Transformer and the default.

    Equation: p_{i,2j} = sin(i / base^(2j/C)),  p_{i,2j+1} = cos(i / base^(2j/C))
    Paper: Vaswani et al., 2017, sec. 3.5
    When: to follow the paper
    Options:
      base: base of the falling frequencies
      layout: sine and cosine of a frequency adjacent, or all sines before all cosines (halves)
      endpoint: the last frequency is 1 / base itself, 2j / (C - 2) in place of 2j / C (tensor2tensor, M2M100)
      offset: added to every position; 2 in M2M100
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        base: PositiveFloat = 10000.0,
        layout: SinusoidalLayout = "interleaved",
        endpoint: bool = False,
        offset: Annotated[int, Field(ge=0, le=_MAX_FIRST_ROWS)] = 0,
    ) -> None:
        super().__init__(shape)
        self.width = shape.d_model
        self.base = base
        self.layout = layout
        self.endpoint = endpoint
        self.offset = offset
        self.max_len = shape.max_len
        self.compute_buffers()

    def compute_buffers(self) -> None:
        """Compute the table on the default device."""
        self.register_buffer(
            "table", self._compute_rows(min(self.max_len, _MAX_FIRST_ROWS)), persistent=False
        )
        self.table: Tensor

    def _compute_rows(self, length: int) -> Tensor:
        """The table rows of positions 0 to length - 1: (length, C)."""
        return sinusoids(length + self.offset, self.width, self.base, self.layout, self.endpoint)[
            self.offset :
        ]

    def reserve(self, length: int) -> None:
        """Compute a longer table if it has fewer positions: max_len is an initial size, not a limit."""
        if length > len(self.table):
            self.table = self._compute_rows(max(length, 2 * len(self.table))).to(self.table)

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); padding gets the row of position 0, which is masked."""
        self.reserve(count_positions(x, pos))
        return x + (self.table[: x.size(1)] if pos is None else self.table[pos.clamp(min=0)]).to(x.dtype)


def sinusoids(
    length: int,
    width: int,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    endpoint: bool = False,
) -> Tensor:
    """The table (length, width), computed in float64; an odd width has one sine more than cosines."""
    if (
        torch.get_default_device().type == "meta"
    ):  # only the shape matters, and arange takes two seconds there
        return torch.empty(length, width)
    with torch.device("cpu"):
        steps = torch.arange(0, width, 2, dtype=torch.float64)
        rate = base ** (-steps / (max(2, 2 * len(steps) - 2) if endpoint else width))
        angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    waves = [angle.sin(), angle.cos()]
    table = torch.stack(waves, -1).flatten(1) if layout == "interleaved" else torch.cat(waves, 1)
    return table[:, :width].float().to(torch.get_default_device())
