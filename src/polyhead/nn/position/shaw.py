"""Learned vectors for relative positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.nn.kv import KV
from polyhead.nn.position.relative_distance import (
    PairPosition,
    ScoreShape,
    compute_distances,
    look_up,
    sum_by_index,
)
from polyhead.nn.tensor_split import TensorSplit


@POSITION.register("shaw")
class Shaw(PairPosition):
    """A learned vector for each distance, added to every key, and another one added to every value.

    Attention to a token's content can thus depend on its distance. Heads and layers share the vectors.
    Queries are multiplied with the 2 clip + 1 vectors, and weights are summed by distance first, so no vector
    is stored per pair of tokens.

    Equation: softmax_j(q_i·(k_j + a_{j-i}) / √D) (v_j + b_{j-i}),  j - i clipped to ±clip
    Paper: Shaw et al., 2018, eq. 3 and 4
    When: short texts with strict word order, or music; more expensive than the other schemes
    Options:
      clip: largest distance with its own vector, in tokens
      values: whether values have such vectors too; the paper found those of the keys to be enough
    """

    tensor_split = TensorSplit(partial_grads=("key", "value"))

    def __init__(self, shape: AttentionShape, *, clip: int = 16, values: bool = True) -> None:
        super().__init__(shape)
        if clip < 1:
            raise UserError(f"clip of shaw is {clip}; it is the largest distinguished distance, at least 1")
        self.clip, self.adds_values = clip, values
        self.key = nn.Parameter(torch.empty(2 * clip + 1, shape.head_dim))
        nn.init.normal_(self.key, std=shape.head_dim**-0.5)
        if values:
            self.value = nn.Parameter(torch.empty(2 * clip + 1, shape.v_head_dim))
            nn.init.normal_(self.value, std=shape.v_head_dim**-0.5)

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor:
        """q a * scale: (B, H, T, D) over kv -> (B, H, T, S)."""
        products = q * (q.size(-1) ** -0.5 if scale is None else scale) @ self.key.to(q.dtype).T
        return look_up(products, self.pair_table(q, kv, pos))

    def values(self, weights: Tensor, kv: KV, pos: Tensor | None) -> Tensor | None:
        """(B, H, T, S) over kv -> (B, H, T, Dv)."""
        if not self.adds_values:
            return None
        sums = sum_by_index(weights, self.pair_table(weights, kv, pos), len(self.value))
        return sums @ self.value.to(weights.dtype)

    def compute_pairs(
        self, q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape, dtype: torch.dtype
    ) -> Tensor:
        """The vector index of each pair: (1|B, 1|H, T, S)."""
        return compute_distances(q_pos, k_pos, score_shape).clamp(-self.clip, self.clip) + self.clip
