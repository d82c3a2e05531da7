"""The plain cache: the slot of a token is its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Watcher
from polyhead.registry import CACHE

Index = tuple[slice | Tensor, slice | Tensor]


class Step(NamedTuple):
    """Where one step writes and what it reads back, computed once for all layers."""

    write: Index  # (row, slot) of each new token
    read: Index  # the rows of this step, the slots in use
    blank: slice  # slots that come into use, though not every row writes them
    pos: Tensor  # (B, 1, S): one object for all layers, so what depends on it can be computed once


@CACHE.register("static")
class StaticCache:
    """A row of slots for each sequence: slot = position, and one spare slot swallows padding.

    Storage starts empty and doubles (at least ``chunk`` slots at a time) up to ``max_len``, so short outputs cost
    little. Rows that stand at the same position are written and read as slices; ragged rows by index.
    """

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int, *, chunk: int = 32) -> None:
        if chunk < 1:
            raise UserError(f"cache 'static': chunk is {chunk}, wanted at least 1 slot")
        self.max_len, self.chunk, self.device = max_len, chunk, shape.device
        self.lengths = [0] * n_rows  # one past the highest position that each row holds
        self.used = 0  # slots that any row has held; beyond them storage is undefined
        self.pos = torch.full((n_rows, 1), -1, device=shape.device)  # the last slot is the spare one
        self.layers = [StaticLayer(shape, n_rows) for _ in range(shape.n_layers)]

    @property
    def nbytes(self) -> int:
        return self.pos.nbytes + sum(layer.nbytes for layer in self.layers)

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.cpu()
        assert len(set(rows)) == len(pos), f"{len(pos)} rows of positions for rows {rows}"
        ends = [
            max(self.lengths[row], last + 1) for row, last in zip(rows, host.amax(1).tolist(), strict=True)
        ]
        seen = max(1, *ends)
        if seen > self.max_len:
            raise UserError(
                f"position {seen - 1} does not fit into a cache of {self.max_len} positions; "
                "make it longer or the text shorter"
            )
        for row, end in zip(rows, ends, strict=True):
            self.lengths[row] = end
        if seen >= self.pos.size(1):
            self._grow(seen)
        whole = rows == list(range(len(self.lengths)))
        write: Index
        if whole and _aligned(host):
            start = int(host[0, 0])
            write, blank = (slice(None), slice(start, start + host.size(1))), slice(self.used, start)
            read: Index = (slice(None), slice(seen))
        else:
            index = torch.tensor(rows, device=self.device)
            write = (index[:, None], torch.where(pos < 0, self.pos.size(1) - 1, pos))
            read, blank = (slice(None) if whole else index, slice(seen)), slice(self.used, seen)
        self.pos[write] = pos
        self.used = max(self.used, seen)
        step = Step(write, read, blank, self.pos[read][:, None])
        for layer in self.layers:
            layer.begin(step, self.used)

    def room(self) -> int:
        return len(self.lengths) * self.max_len - sum(self.lengths)

    def fork(self, src: int, dst: int) -> None:
        self.pos[dst] = self.pos[src]
        self.lengths[dst] = self.lengths[src]
        for layer in self.layers:
            layer.fork(src, dst)

    def release(self, row: int) -> None:
        self.pos[row] = -1
        self.lengths[row] = 0
        for layer in self.layers:
            layer.clear(row)

    def select(self, rows: Sequence[int]) -> None:
        rows = [int(row) for row in rows]
        if rows == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.pos = self.pos.index_select(0, index)
        for layer in self.layers:
            layer.select(index)

    def _grow(self, slots: int) -> None:
        """Room for ``slots`` at least; the spare slot moves to the new end."""
        held = self.pos.size(1) - 1
        slots = 1 + min(max(slots, held + max(self.chunk, held)), self.max_len)
        self.pos = torch.cat([self.pos[:, :held], self.pos.new_full((len(self.pos), slots - held), -1)], 1)
        for layer in self.layers:
            layer.grow(slots)


class StaticLayer:
    """The slots of one layer, (row, slot, K, D): the slots of a row lie together, so moving a row is one copy.

    Slots below ``used`` are finite in all rows, for a masked slot has weight 0, and 0 times NaN is NaN.
    """

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        self.k = torch.empty(
            n_rows, 1, shape.n_kv_heads, shape.head_dim, dtype=shape.dtype, device=shape.device
        )
        self.v = torch.empty(n_rows, 1, shape.n_kv_heads, shape.v_dim, dtype=shape.dtype, device=shape.device)
        self.used = 0
        self.step: Step | None = None
        self.watcher: Watcher | None = None

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def begin(self, step: Step, used: int) -> None:
        """Get ready for a step after which ``used`` slots are in use."""
        self.step, self.used = step, used
        self.k[:, step.blank] = 0
        self.v[:, step.blank] = 0

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: the slots in use."""
        assert self.step is not None, "begin() comes before update()"
        self.k[self.step.write] = kv.k.transpose(1, 2).to(self.k.dtype)
        self.v[self.step.write] = kv.v.transpose(1, 2).to(self.v.dtype)
        k, v = self.k[self.step.read], self.v[self.step.read]
        return KV(k.transpose(1, 2), v.transpose(1, 2), self.step.pos)

    def select(self, rows: Tensor) -> None:
        self.k, self.v = (_moved(x, rows, self.used) for x in (self.k, self.v))
        self.step = None

    def fork(self, src: int, dst: int) -> None:
        """Row src, copied to row dst."""
        for x in (self.k, self.v):
            x[dst, : self.used] = x[src, : self.used]

    def clear(self, row: int) -> None:
        """Zeros, in case there was a NaN."""
        for x in (self.k, self.v):
            x[row, : self.used] = 0

    def grow(self, slots: int) -> None:
        """So many slots in all."""
        self.k, self.v = (_widened(x, slots, self.used) for x in (self.k, self.v))


def _aligned(pos: Tensor) -> bool:
    """Whether all rows hold the same run of positions: (B, T)."""
    first = pos[0]
    return bool(first[0] >= 0) and bool((pos == first[0] + torch.arange(pos.size(1))).all())


def _widened(x: Tensor, slots: int, used: int) -> Tensor:
    """(B, S, K, D) -> (B, slots, K, D), of which ``used`` are worth copying."""
    wide = x.new_empty((x.size(0), slots, *x.shape[2:]))
    wide[:, :used] = x[:, :used]
    return wide


def _moved(x: Tensor, rows: Tensor, used: int) -> Tensor:
    """The given rows of (B, S, K, D), of which ``used`` slots are worth copying."""
    moved = x.new_empty((len(rows), *x.shape[1:]))
    torch.index_select(x[:, :used], 0, rows, out=moved[:, :used])
    return moved
