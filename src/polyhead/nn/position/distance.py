"""How far apart queries and slots are, and numbers looked up by that."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.nn.certain import certain
from polyhead.nn.kv import KV, whole


class Extent(NamedTuple):
    """How much of what there is, and where."""

    heads: int
    queries: int
    slots: int
    device: torch.device

    @classmethod
    def of(cls, q: Tensor, kv: KV) -> Extent:
        """(B, H, T, any) over kv."""
        return cls(q.size(1), q.size(2), kv.k.size(2), q.device)


def distances(q_pos: Tensor | None, k_pos: Tensor | None, extent: Extent) -> Tensor:
    """Position of the slot less that of the query: (B, T), (B, 1|K, S) -> (1|B, 1|H, T, S) int64.

    None stands for whole rows. Where a query or slot is empty (position -1) it is some number, seen by nobody.
    """
    q = whole(extent.queries, extent.device) if q_pos is None else agreed(q_pos)
    k = whole(extent.slots, extent.device)[:, None] if k_pos is None else agreed(k_pos)
    k = k if k.size(1) == 1 else k.repeat_interleave(extent.heads // k.size(1), 1)
    return k[:, :, None, :] - q[:, None, :, None]


def agreed(pos: Tensor) -> Tensor:
    """One row in place of all, if all hold the same positions where they are not empty: (B, ...) -> (1|B, ...).

    The rows of a padded batch do, and tables for one row are smaller by the size of the batch. Looking is a pass
    over pos; another device would have to be waited for, and is not asked.
    """
    if pos.device.type != "cpu" or pos.size(0) < 2:  # len() would be fixed in an exported graph
        return pos
    common = pos.amax(0, keepdim=True)
    return common if certain(((pos == common) | (pos < 0)).all()) else pos


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[..., index] for each query: (1|B, H, 1|T, R), (1|B, 1|H, T, S) -> (1|B, H, T, S)."""
    rows, heads = max(table.size(0), index.size(0)), table.size(1)
    return table.expand(rows, -1, index.size(2), -1).gather(-1, index.expand(rows, heads, -1, -1))


def gathered(weights: Tensor, index: Tensor, size: int) -> Tensor:
    """The sum of the weights of each index: (B, H, T, S), (1|B, 1|H, T, S) -> (B, H, T, size)."""
    wide = torch.promote_types(weights.dtype, torch.float32)  # GPUs add in the precision of the sums
    sums = weights.new_zeros(*weights.shape[:3], size, dtype=wide)
    return sums.scatter_add(-1, index.expand(weights.shape), weights.to(wide)).to(weights.dtype)
