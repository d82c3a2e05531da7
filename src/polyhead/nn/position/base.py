"""Base class of position schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION
from polyhead.nn.device import is_traced
from polyhead.nn.kv import KV
from polyhead.nn.shard_plan import ShardPlan

ProjectQK = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Attention's projection of arbitrary vectors to queries and keys: (R, C) -> (H, R, D), (K, R, D)."""

PositionKind = Literal["nothing", "embeddings", "heads", "scores"]
# a scheme that overrides several methods is classified by the last one; no kernel supports that combination
_METHOD_KINDS: dict[str, PositionKind] = {
    "embed": "embeddings",
    "rotate": "heads",
    "bias": "scores",
    "scores": "scores",
    "values": "scores",
}


@POSITION.register("none")
class Position(nn.Module):
    """No positions: attention then treats its input as a set.

    An encoder cannot use the order of tokens; a decoder can, through its causal mask. This is also the base
    class of all schemes: each scheme overrides the method of the one place where it acts, which ``kind``
    names. ``pos`` None means full rows 0..T-1.

    When: a baseline
    """

    kind: PositionKind = "nothing"
    shard_plan: ShardPlan | None = ShardPlan()
    n_products = 1  # number of products summed in a score: more if the scheme adds its own

    def __init_subclass__(cls) -> None:
        """Set ``kind`` by the overridden method: kernels dispatch on ``kind`` and ignore other methods."""
        super().__init_subclass__()
        for method, kind in _METHOD_KINDS.items():
            if getattr(cls, method) is not getattr(Position, method):
                cls.kind = kind
        # one that acts on heads must declare for itself how it is sharded
        if cls.kind in ("heads", "scores") and cls.shard_plan is Position.shard_plan:
            cls.shard_plan = None

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()

    def prepare(self, pos: Tensor | None, length: int, device: torch.device) -> Position:
        """The scheme for one forward pass over tokens at pos (B, T): with the tables that all layers share.

        Called once by the stack, which passes the result to its layers. A scheme without tables is itself.
        """
        return self

    def reserve(self, length: int) -> None:
        """Make sure that a table, if there is one, has the positions below ``length``; else a UserError."""

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Add positions to the embeddings (sinusoidal, learned): (B, T, C), (B, T) -> (B, T, C)."""
        return x

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Rotate queries and keys (rope): (B, H, T, D), (B, T) -> (B, H, T, D)."""
        return x

    def scale_only(self, x: Tensor) -> Tensor:
        """Scale as ``rotate`` does, without rotating: (B, H, T, D) -> (B, H, T, D)."""
        return x

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor | None:
        """Score bias (alibi, relative): (B, H, T, D) at pos (B, T) over kv -> (1 or B, H, T, S).

        ``scale`` is attention's factor on its products, 1/sqrt(D) if None; a bias that is itself a product
        with the query is multiplied by it too.
        """
        return None

    def scores(
        self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None, project: ProjectQK
    ) -> Tensor | None:
        """Like ``bias``, for schemes that ``project`` their own vectors through attention (disentangled)."""
        return self.bias(q, kv, pos, scale)

    def values(self, weights: Tensor, kv: KV, pos: Tensor | None) -> Tensor | None:
        """Output term (relative): weights (B, H, T, S), after dropout, at pos over kv -> (B, H, T, Dv).

        A scheme with such a term sets ``adds_values``, since attention must then compute its weights
        explicitly.
        """
        return None

    adds_values = False


def count_positions(x: Tensor, pos: Tensor | None) -> int:
    """The number of positions that tokens (B, T, C) at pos (B, T) need of a table.

    0 if it would have to be read in a graph or from another device; there the embedding asks before.
    """
    if pos is None:
        return x.size(1)
    return 0 if is_traced() or pos.device.type != "cpu" or not pos.numel() else int(pos.max()) + 1
