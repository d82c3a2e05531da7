"""Learned biases of the scores by distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.nn.position.distance import Extent, distances, look_up
from polyhead.nn.position.once import Once
from polyhead.registry import POSITION


@POSITION.register("t5")
class T5(Position):
    """One learned number for each head and bucket of distances, added to the scores.

    A causal stack has all its buckets behind the query, an encoder half of them ahead of it. Half of those of a
    side are for one distance each, the others widen with the distance up to ``max_distance``; the last holds all
    beyond. All layers of a stack share the numbers. (T5 itself does not divide by √D: attention has ``scale`` for it.)

    Equation: q_i·k_j / √D + b_{h, bucket(j - i)},  b learned, (buckets, H)
    Paper: Raffel et al., 2020, sec. 2.1
    When: to build as T5 does; where a distance means something of its own, as in tables or verse
    Options:
      buckets: of distances, both sides of an encoder together
      max_distance: tokens from which on all distances are one
    """

    def __init__(self, shape: Shape, *, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__(shape)
        if buckets < 4 or buckets % 2:
            near = max(4, buckets + 1)
            raise UserError(
                f"buckets of t5 is {buckets}; two sides want an even number, at least 4: try {near}"
            )
        if max_distance <= buckets // 2:
            raise UserError(
                f"max_distance of t5 is {max_distance}; {buckets} buckets tell all distances up to {buckets // 2} "
                f"apart, so give at least {buckets // 2 + 1}"
            )
        self.buckets, self.max_distance, self.causal, self._once = buckets, max_distance, shape.causal, Once()
        self.weight = nn.Parameter(torch.empty(buckets, shape.n_heads))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor:
        """(B, H, T, D) over kv -> (1|B, H, T, S)."""
        index = self._once(self._index, pos, kv.pos, Extent.of(q, kv))
        return look_up(self.weight.T[None, :, None], index)

    def _index(self, q_pos: Tensor | None, k_pos: Tensor | None, extent: Extent) -> Tensor:
        return bucket(distances(q_pos, k_pos, extent), self.buckets, self.max_distance, self.causal)


def bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each distance k - q, 0 to buckets - 1, in the fp32 arithmetic of the original code."""
    side = buckets if causal else buckets // 2
    ahead = torch.zeros_like(distance) if causal else (distance > 0) * side
    behind = (-distance).clamp(min=0) if causal else distance.abs()
    exact = side // 2
    log = (behind.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (side - exact)
    return ahead + torch.where(behind < exact, behind, (exact + log.long()).clamp(max=side - 1))
