"""The cache that everybody writes first: what is new is appended."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import Arrivals, RowCache, RowLayer, of
from polyhead.nn.kv import KV, visible
from polyhead.registry import CACHE


class Place(NamedTuple):
    """Where one step's tokens go."""

    new: Arrivals
    slots: Tensor  # (B, T)
    more: int  # slots that come into being
    pos: Tensor  # (B, 1, S)
    seen: Tensor  # (B, 1, T, S)


@CACHE.register("growing")
class GrowingCache(RowCache):
    """Tokens in the order of their arrival, each appended to those before.

    Storage is never longer than the longest row, and all of it is copied at every step. A position that comes again
    leaves a hole where it was.

    Paper: Pope et al., 2022, sec. 3.3
    When: to compare with; where nobody knows how long texts become and every byte counts. It loses nothing
    Recipe: generation: {cache: growing}
    """

    name = "growing"
    lossless, rewinds = True, True
    kept: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        super().__init__(shape, n_rows, max_len)
        self.pos = torch.full((n_rows, 0), -1, device=shape.device)
        self.layers = [GrowingLayer(shape, n_rows) for _ in range(shape.n_layers)]
        self.slot = 8 + shape.n_layers * shape.token_bytes

    def used(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot

    def place(self, new: Arrivals) -> Place:
        rows = torch.arange(len(self.pos), device=self.device) if new.rows is None else new.rows
        slot = torch.arange(self.pos.size(1), device=self.device) + 1
        ends = ((self.pos[rows] >= 0) * slot).amax(1) if len(slot) and len(rows) else torch.zeros_like(rows)
        if len(new.real[0]) and bool((new.pos.amax(1) >= 0).any() & (_first(new.pos) < new.before).any()):
            again = (self.pos[rows][:, None] == new.pos[:, :, None]) & (new.pos >= 0)[:, :, None]
            self.pos[rows] = self.pos[rows].masked_fill(again.any(1), -1)
        slots = ends[:, None] + (new.pos >= 0).cumsum(1) - 1
        more = max(0, int((ends + (new.pos >= 0).sum(1)).amax()) - self.pos.size(1)) if len(rows) else 0
        self.pos = torch.cat([self.pos, self.pos.new_full((len(self.pos), more), -1)], 1)
        b, t = new.real
        self.pos[rows[b], slots[b, t]] = new.pos[b, t]
        held = of(self.pos, new.rows)[:, None]
        return Place(new, slots, more, held, visible(new.pos, held, True))


class GrowingLayer(RowLayer):
    """(row, K, slot, D)."""

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        super().__init__()
        self.k, self.v = shape.storage(n_rows, 0)

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out."""
        new, slots, more, pos, seen = self.step
        self.k, self.v = (
            torch.cat([x, x.new_zeros(*x.shape[:2], more, x.size(3))], 2) for x in (self.k, self.v)
        )
        new.write(self.k, kv.k, slots)
        new.write(self.v, kv.v, slots)
        return KV(of(self.k, new.rows), of(self.v, new.rows), pos, seen=seen)


def _first(pos: Tensor) -> Tensor:
    """The least position of each row, (B, T) -> (B,)."""
    return pos.masked_fill(pos < 0, 2**62).amin(1)
