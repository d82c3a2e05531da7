"""Attention with linear biases."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION
from polyhead.nn.kv import KV
from polyhead.nn.position.relative_distance import PairPosition, ScoreShape, compute_distances
from polyhead.nn.tensor_split import TensorSplit, select_shard


@POSITION.register("alibi")
class Alibi(PairPosition):
    """A penalty on the scores that grows with the distance, at a different rate for each head.

    Nothing is learned and length is not limited, since distant tokens always have small weights. If the
    number of heads is no power of two, rates are interleaved from those of the powers below and above. In an
    encoder both directions count alike.

    Equation: q_i·k_j / √D - m_h |i - j|,  m_h = 2^(-8h/H) for heads h = 1..H
    Paper: Press et al., 2022, sec. 3
    When: inputs may be longer than any in training
    """

    tensor_split = TensorSplit()

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self.slopes = get_alibi_slopes(shape.n_heads)

    def keep_shard(self, rank: int, size: int) -> None:
        """Keep the slopes of the heads of a rank."""
        self.slopes = self.slopes[select_shard(len(self.slopes), rank, size)]

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor:
        """(B, H, T, D) over kv -> (1|B, H, T, S). Causal queries see no later slot, so |q - k| is q - k."""
        bias: Tensor = self.pair_table(q, kv, pos)
        return bias

    def compute_pairs(
        self, q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape, dtype: torch.dtype
    ) -> Tensor:
        """The bias itself: (1|B, H, T, S)."""
        rates = torch.tensor(self.slopes, device=score_shape.device)[:, None, None]
        return (compute_distances(q_pos, k_pos, score_shape).abs() * -rates).to(dtype)


def get_alibi_slopes(n_heads: int) -> list[float]:
    """2^(-8h/H) for heads h = 1..H.

    If H is no power of two: the slopes of the power below, then every second one of the power above.
    """
    lower = 1 << (n_heads.bit_length() - 1)
    first = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    return first + [2 ** (-4 * h / lower) for h in range(1, 2 * (n_heads - lower), 2)]
