"""Sinusoidal positions."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.config import Shape
from polyhead.nn.position.base import Position
from polyhead.registry import POSITION


@POSITION.register("sinusoidal")
class Sinusoidal(Position):
    """Sines and cosines of falling frequencies, added to the embeddings.

    Nothing is learned, and any length works: the table is computed in float64 and grows when it must. The scheme of the
    original Transformer and the default.

    Equation: p_{i,2j} = sin(i / base^(2j/C)),  p_{i,2j+1} = cos(i / base^(2j/C))
    Paper: Vaswani et al., 2017, sec. 3.5
    When: to follow the paper
    Options:
      base: base of the falling frequencies
    """

    acts_on = "embeddings"

    def __init__(self, shape: Shape, *, base: float = 10000.0) -> None:
        super().__init__(shape)
        self.base = base
        self.register_buffer("table", sinusoids(shape.max_len, shape.d_model, base), persistent=False)
        self.table: Tensor

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); padding gets the row of position 0, which nobody sees."""
        longest = x.size(1) if pos is None else int(pos.max()) + 1 if pos.numel() else 0
        if longest > len(self.table):  # a preset length is a guess, not a limit
            self.table = sinusoids(max(longest, 2 * len(self.table)), self.table.size(1), self.base).to(
                self.table
            )
        return x + (self.table[: x.size(1)] if pos is None else self.table[pos.clamp(min=0)]).to(x.dtype)


def sinusoids(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The table (length, width), computed in float64; an odd width ends with a sine."""
    with torch.device("cpu"):  # even for a model that is built on the meta device: there arange costs two seconds
        rate = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width].float()
    return table.to(torch.get_default_device())
