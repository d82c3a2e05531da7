"""The plain cache: the slot of a token is its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import RowCache, RowLayer, check_fits, of
from polyhead.cache.stored import Pages, Places
from polyhead.errors import UserError
from polyhead.nn.kv import KV, visible
from polyhead.registry import CACHE


class Step(NamedTuple):
    """Where one step writes and what it may see, computed once for all layers."""

    rows: Tensor | None  # the rows of this step, (B,); None: all, in order
    # the slots of the new tokens: one slice for all rows, or (row, slot)
    write: slice | tuple[Tensor, Tensor]
    pos: Tensor  # (B, 1, S): one object for all layers, so what depends on it can be computed once
    seen: Tensor  # (B, 1, T, S): which slots each new token may see
    padding: Tensor | None  # (B, 1, T, 1) True at tokens that are none; None where there are no such
    slots: int  # that its rows have used, the first ones; nothing is to be seen in the others


@CACHE.register("static")
class StaticCache(RowCache):
    """A row of slots for each sequence: slot = position, and one spare slot swallows padding.

    Kept are projected keys and values, (rows, K, slots, D) a layer. Storage starts empty and grows by ``chunk``
    slots, or an eighth, up to ``max_len``; attention is given all of it, unused slots at position -1, for a few wasted
    products cost less than keys that do not lie together. Stepping gives what the whole forward gives; beam search
    reorders its rows.

    When: the choice for keys and values; it loses nothing
    Options:
      chunk: slots by which storage grows, or an eighth of it, whichever is more
    """

    name = "static"
    lossless, rewinds = True, True
    kept: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int, *, chunk: int = 32) -> None:
        super().__init__(shape, n_rows, max_len)
        if chunk < 1:
            raise UserError(f"cache 'static': chunk is {chunk}, wanted at least 1 slot")
        self.chunk = chunk
        self.high = 0  # slots that some row has ever used
        self.pos = torch.full((n_rows, 1), -1, device=shape.device)  # the last slot is the spare one
        self.layers: list[StaticLayer] = [StaticLayer(shape, n_rows) for _ in range(shape.n_layers)]
        self.slot = 8 + shape.n_layers * shape.token_bytes
        self.peak = self.nbytes

    def used(self) -> int:
        """A row's tokens fill it up to its last position."""
        return sum(self.lengths) * self.slot

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.tolist()
        assert len(set(rows)) == len(host), f"{len(host)} rows of positions for rows {rows}"
        ends = [max(self.lengths[row], 1 + max(at)) for row, at in zip(rows, host, strict=True)]
        longest = max(ends, default=0)
        check_fits(longest, self.max_len)
        for row, end in zip(rows, ends, strict=True):
            self.lengths[row] = end
        if longest >= self.pos.size(1):
            self._grow(longest)
        self.high = max(self.high, longest)
        step = self._step(rows, pos, host)
        for layer in self.layers:
            layer.step, layer.high = step, self.high

    def _step(self, rows: list[int], pos: Tensor, host: list[list[int]]) -> Step:
        """Mark the new positions; rows that stand together are written as one slice, others by index."""
        index = None if rows == list(range(len(self.lengths))) else torch.tensor(rows, device=self.device)
        used = max((self.lengths[row] for row in rows), default=0)
        if index is None and _aligned(host):
            slots = slice(host[0][0], host[0][-1] + 1)
            self.pos[:, slots] = pos
            held = self.pos[:, None]
            return Step(None, slots, held, visible(pos, held, True), None, used)
        where = torch.arange(len(pos), device=self.device) if index is None else index
        padding = pos < 0 if min(map(min, host)) < 0 else None
        write = where[:, None], pos if padding is None else pos.masked_fill(padding, self.pos.size(1) - 1)
        self.pos[write] = pos
        held = of(self.pos, index)[:, None]
        seen = visible(pos, held, True)
        return Step(index, write, held, seen, None if padding is None else padding[:, None, :, None], used)

    def _grow(self, slots: int) -> None:
        """Room for ``slots`` at least; the spare slot stays the last."""
        held = self.pos.size(1) - 1
        more = min(max(slots, held + max(self.chunk, held // 8)), self.max_len) - held
        self.pos = torch.cat([self.pos, self.pos.new_full((len(self.pos), more), -1)], 1)
        for layer in self.layers:
            layer.grow(more)
        self.peak = max(self.peak, self.nbytes)


class StaticLayer(RowLayer):
    """The slots of one layer, (row, K, slot, D), finite from the beginning: a masked slot has weight 0, and
    0 times NaN is NaN. Beams are moved to and fro between two storages, for fresh memory costs more than the copy.
    """

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        super().__init__()
        self.k, self.v = shape.storage(n_rows, 1)
        self.other: list[Tensor] = []  # where k and v go at the next select, if there was one
        self.high = 0  # slots that some row has ever used; the others are not worth moving

    @property
    def nbytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in (self.k, self.v, *self.other))

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: all slots."""
        assert self.step is not None, "begin() comes before update()"
        rows, write, pos, seen, padding, _ = self.step
        for x, new in ((self.k, kv.k), (self.v, kv.v)):
            new = new.to(x.dtype) if padding is None else new.to(x.dtype).masked_fill(padding, 0)
            if isinstance(write, slice):
                x[:, :, write] = new
            else:  # two index tensors about a slice: their dimensions come first
                x[write[0], :, write[1]] = new.transpose(1, 2)
        return KV(of(self.k, rows), of(self.v, rows), pos, seen=seen)

    def places(self) -> Places | None:
        """Where this step's tokens go, for who writes them there himself; None where some are padding."""
        assert self.step is not None, "begin() comes before places()"
        _, write, pos, seen, padding, slots = self.step
        if padding is not None:
            return None
        if isinstance(write, slice):
            row, slot = torch.arange(len(self.k))[:, None], torch.arange(write.start, write.stop)
        else:
            row, slot = write
        pages = Pages(self.k, self.v, row, lambda x: x.index_select(0, row[:, 0]))
        first = (row * (self.k.size(1) * self.k.size(2)) + slot).flatten()
        return Places(pages, first, pos[..., :slots], seen[..., :slots].contiguous())

    def select(self, rows: Tensor) -> None:
        moved = [x[: len(rows)] for x in self.other if x.size(0) >= len(rows)]
        for x, to in zip((self.k, self.v), moved, strict=False):
            torch.index_select(x[:, :, : self.high], 0, rows, out=to[:, :, : self.high])
        if not moved:
            moved = [x.index_select(0, rows) for x in (self.k, self.v)]
        self.other, (self.k, self.v), self.step = [self.k, self.v], moved, None

    def add(self, n: int) -> None:
        super().add(n)
        self.other = []

    def grow(self, more: int) -> None:
        """So many slots more."""
        self.k, self.v = (
            torch.cat([x, x.new_zeros(*x.shape[:2], more, x.size(3))], 2) for x in (self.k, self.v)
        )
        self.other = []


def _aligned(pos: list[list[int]]) -> bool:
    """Whether all rows hold the same run of positions: (B, T)."""
    first = pos[0][0]
    return first >= 0 and pos[0] == list(range(first, first + len(pos[0]))) and pos.count(pos[0]) == len(pos)
