"""Learned score biases by distance (T5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.nn.kv import KV
from polyhead.nn.position.relative_distance import PairPosition, ScoreShape, compute_distances, look_up
from polyhead.nn.tensor_split import TensorSplit


@POSITION.register("t5")
class T5Bias(PairPosition):
    """One learned number for each head and bucket of distances, added to the scores.

    In a causal stack all buckets are for earlier tokens, in an encoder half of them for later ones. In each
    direction half of the buckets hold one distance each, the others widen up to ``max_distance``; the last
    holds all beyond. All layers of a stack share the numbers. (T5 itself does not divide by √D: set
    attention's ``scale`` for it.)

    Equation: q_i·k_j / √D + b_{h, bucket(j - i)},  b learned, (buckets, H)
    Paper: Raffel et al., 2020, sec. 2.1
    When: to build models like T5; where certain distances have a meaning, as in tables or verse
    Options:
      buckets: number of distance buckets, both directions of an encoder together
      max_distance: tokens from which on all distances are equal
    """

    tensor_split = TensorSplit(shard_dims={"weight": 1})

    def __init__(self, shape: AttentionShape, *, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(shape)
        if buckets < 4 or buckets % 2:
            nearest = max(4, buckets + 1)
            raise UserError(
                f"buckets of t5 is {buckets}; with two sides it must be even and at least 4: try {nearest}"
            )
        if max_distance <= buckets // 2:
            raise UserError(
                f"max_distance of t5 is {max_distance}; {buckets} buckets distinguish all distances up to "
                f"{buckets // 2}, so it must be at least {buckets // 2 + 1}"
            )
        self.buckets, self.max_distance, self.causal = buckets, max_distance, shape.causal
        self.weight = nn.Parameter(torch.empty(buckets, shape.n_heads))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor:
        """(B, H, T, D) over kv -> (1|B, H, T, S)."""
        return look_up(self.weight.T[None, :, None], self.pair_table(q, kv, pos))

    def compute_pairs(
        self, q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape, dtype: torch.dtype
    ) -> Tensor:
        """The bucket of each pair: (1|B, 1|H, T, S)."""
        return t5_bucket_index(
            compute_distances(q_pos, k_pos, score_shape), self.buckets, self.max_distance, self.causal
        )


def t5_bucket_index(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each distance k - q, 0 to buckets - 1, in the fp32 arithmetic of the original code."""
    side = buckets if causal else buckets // 2
    ahead = torch.zeros_like(distance) if causal else (distance > 0) * side
    size = (-distance).clamp(min=0) if causal else distance.abs()
    exact = side // 2
    log = (size.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (side - exact)
    return ahead + torch.where(size < exact, size, (exact + log.long()).clamp(max=side - 1))
