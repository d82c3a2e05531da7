"""Distances between queries and slots, and table lookups by distance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.nn.export_guard import known_true
from polyhead.nn.kv import KV, arange_positions
from polyhead.nn.position.base import Position


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
