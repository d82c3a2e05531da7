"""Positions by the distance of query and key: ALiBi, the buckets of T5, and the tables of Shaw et al."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import POSITION
from polyhead.nn.device import known_true
from polyhead.nn.kv import KV, arange_positions
from polyhead.nn.position.base import Position
from polyhead.nn.shard_plan import ShardPlan, select_shard


class ScoreShape(NamedTuple):
    """Sizes and device of the scores of one attention call."""

    heads: int
    queries: int
    slots: int
    device: torch.device

    @classmethod
    def from_query(cls, q: Tensor, kv: KV) -> ScoreShape:
        """From a query (B, H, T, any) and kv."""
        return cls(q.size(1), q.size(2), kv.k.size(2), q.device)


class PairPosition(Position):
    """Base of schemes whose scores need a table over the pairs of query and slot, which
    positions determine.
    """

    def compute_pairs(
        self, q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape, dtype: torch.dtype
    ) -> Any:
        """The table for queries of ``dtype`` at q_pos (B, T) over slots at k_pos (B, 1|K, S)."""
        raise NotImplementedError

    def pair_table(self, q: Tensor, kv: KV, pos: Tensor | None) -> Any:
        """The table for queries or weights (B, H, T, any) at pos (B, T) over kv."""
        return self.compute_pairs(pos, kv.pos, ScoreShape.from_query(q, kv), q.dtype)

    def prepare(self, pos: Tensor | None, length: int, device: torch.device) -> PairPosition:
        """A copy that computes the table for the first layer, and again only where slots have other
        positions.
        """
        if torch.compiler.is_compiling():  # the compiler removes duplicate computation itself
            return self
        prepared = copy.copy(self)
        prepared.pair_table = LastPairTable(self.pair_table)  # type: ignore[method-assign]
        return prepared


class LastPairTable:
    """The pair table of one forward pass, for consecutive layers whose slots have the same positions."""

    def __init__(self, compute: Callable[[Tensor, KV, Tensor | None], Any]) -> None:
        self.compute = compute
        self.slot_pos: Tensor | None = None
        self.sizes: tuple[ScoreShape, torch.dtype] | None = None

    def __call__(self, q: Tensor, kv: KV, pos: Tensor | None) -> Any:
        sizes, slot_pos = (ScoreShape.from_query(q, kv), q.dtype), kv.pos
        is_same = slot_pos is self.slot_pos or (
            slot_pos is not None and self.slot_pos is not None and slot_pos.is_set_to(self.slot_pos)
        )
        if sizes != self.sizes or not is_same:
            self.table, self.sizes, self.slot_pos = self.compute(q, kv, pos), sizes, slot_pos
        return self.table


def compute_distances(q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape) -> Tensor:
    """Position of the slot minus that of the query: (B, T), (B, 1|K, S) -> (1|B, 1|H, T, S) int64.

    None means full rows. The value is arbitrary where a query or slot is padding (position -1), which is
    masked anyway.
    """
    q = arange_positions(score_shape.queries, score_shape.device) if q_pos is None else same_positions(q_pos)
    k = (
        arange_positions(score_shape.slots, score_shape.device)[:, None]
        if k_pos is None
        else same_positions(k_pos)
    )
    k = k if k.size(1) == 1 else k.repeat_interleave(score_shape.heads // k.size(1), 1)
    return k[:, :, None, :] - q[:, None, :, None]


def same_positions(pos: Tensor) -> Tensor:
    """Reduce to one row if all rows hold the same positions, apart from padding: (B, ...) -> (1|B, ...).

    True for most padded batches; tables for one row are smaller by a factor of the batch size. The check is a
    pass over pos; on other devices it would force a synchronisation and is skipped.
    """
    if pos.device.type != "cpu" or pos.size(0) < 2:  # len() would be a constant in an exported graph
        return pos
    common = pos.amax(0, keepdim=True)
    return common if known_true(((pos == common) | (pos < 0)).all()) else pos


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[..., index] for each query: (1|B, H, 1|T, R), (1|B, 1|H, T, S) -> (1|B, H, T, S)."""
    rows, heads = max(table.size(0), index.size(0)), table.size(1)
    return table.expand(rows, -1, index.size(2), -1).gather(-1, index.expand(rows, heads, -1, -1))


def sum_by_index(weights: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the weights by index: (B, H, T, S), (1|B, 1|H, T, S) -> (B, H, T, size)."""
    wide = torch.promote_types(weights.dtype, torch.float32)  # GPUs accumulate in the dtype of the output
    sums = weights.new_zeros(*weights.shape[:3], size, dtype=wide)
    return sums.scatter_add(-1, index.expand(weights.shape), weights.to(wide)).to(weights.dtype)


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

    shard_plan = ShardPlan()

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

    shard_plan = ShardPlan(shard_dims={"weight": 1})

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

    shard_plan = ShardPlan(partial_grads=("key", "value"))

    def __init__(self, shape: AttentionShape, *, clip: PositiveInt = 16, values: bool = True) -> None:
        super().__init__(shape)
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
