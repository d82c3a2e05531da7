"""Attention with linear biases."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.config import Shape
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.nn.position.distance import Extent, distances
from polyhead.nn.position.once import Once
from polyhead.registry import POSITION


@POSITION.register("alibi")
class Alibi(Position):
    """A penalty on the scores that grows with the distance, at a rate of each head's own.

    Nothing is learned and no length is a limit: what is far was always faint. With a number of heads that is no power
    of two, rates are taken from between those of the powers below and above. In an encoder both sides count alike.

    Equation: q_i·k_j / √D - m_h |i - j|,  m_h = 2^(-8h/H) for heads h = 1..H
    Paper: Press et al., 2022, sec. 3
    When: inputs may be longer than any in training
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slopes, self._once = slopes(shape.n_heads), Once()

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor:
        """(B, H, T, D) over kv -> (1|B, H, T, S). A causal query sees no slot ahead, so |q - k| is its q - k."""
        return self._once(self._biases, pos, kv.pos, Extent.of(q, kv), q.dtype)

    def _biases(
        self, q_pos: Tensor | None, k_pos: Tensor | None, extent: Extent, dtype: torch.dtype
    ) -> Tensor:
        rates = torch.tensor(self.slopes, device=extent.device)[:, None, None]
        return (distances(q_pos, k_pos, extent).abs() * -rates).to(dtype)


def slopes(n_heads: int) -> list[float]:
    """2^(-8h/H) for heads h = 1..H; if H is no power of two, those of the power below it, and then every second
    one of the power above."""
    lower = 1 << (n_heads.bit_length() - 1)
    first = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    return first + [2 ** (-4 * h / lower) for h in range(1, 2 * (n_heads - lower), 2)]
