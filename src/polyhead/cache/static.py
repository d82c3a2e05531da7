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
        self.capacity = 0  # slots without the spare one, which is the last
        self.pos = torch.full((n_rows, 1), -1, device=shape.device)
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
        used = max(1, *ends)
        if used > self.max_len:
            raise UserError(
                f"position {used - 1} does not fit into a cache of {self.max_len} positions; "
                "make it longer or the text shorter"
            )
        if used > self.capacity:
            self._grow(used)
        for row, end in zip(rows, ends, strict=True):
            self.lengths[row] = end
        whole = rows == list(range(len(self.lengths)))
        write: Index
        read: Index
        if whole and _aligned(host):
            start = int(host[0, 0])
            write, read = (slice(None), slice(start, start + host.size(1))), (slice(None), slice(used))
        else:
            index = torch.tensor(rows, device=self.device)
            write = (index[:, None], torch.where(pos < 0, self.capacity, pos))
            read = (slice(None) if whole else index, slice(used))
        self.pos[write] = pos
        step = Step(write, read, self.pos[read][:, None])
        for layer in self.layers:
            layer.step = step

    def room(self) -> int:
        return len(self.lengths) * self.max_len - sum(self.lengths)

    def fork(self, src: int, dst: int) -> None:
        self.pos[dst] = self.pos[src]
        self.lengths[dst] = self.lengths[src]
        for layer in self.layers:
            layer.fork(src, dst, self.lengths[src])

    def release(self, row: int) -> None:
        self.pos[row] = -1
        for layer in self.layers:
            layer.clear(row, self.lengths[row])
        self.lengths[row] = 0

    def select(self, rows: Sequence[int]) -> None:
        rows = [int(row) for row in rows]
        if rows == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.pos = self.pos.index_select(0, index)
        for layer in self.layers:
            layer.used = max(self.lengths, default=0)
            layer.select(index)

    def _grow(self, used: int) -> None:
        """Room for ``used`` slots at least; the spare slot moves to the new end."""
        capacity = max(used, self.capacity + max(self.chunk, self.capacity))
        self.capacity, old = min(capacity, self.max_len), self.capacity
        self.pos = _widen(self.pos[:, :old], self.capacity + 1, -1)
        for layer in self.layers:
            layer.grow(old, self.capacity + 1)


class StaticLayer:
    """The slots of one layer, (row, slot, K, D): the slots of a row lie together, so moving a row is one copy."""

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        self.k = torch.zeros(
            n_rows, 1, shape.n_kv_heads, shape.head_dim, dtype=shape.dtype, device=shape.device
        )
        self.v = torch.zeros(n_rows, 1, shape.n_kv_heads, shape.v_dim, dtype=shape.dtype, device=shape.device)
        self.used = 0
        self.step: Step | None = None
        self.watcher: Watcher | None = None

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: the slots in use."""
        assert self.step is not None, "begin() comes before update()"
        write, read, pos = self.step
        self.k[write] = kv.k.transpose(1, 2).to(self.k.dtype)
        self.v[write] = kv.v.transpose(1, 2).to(self.v.dtype)
        return KV(self.k[read].transpose(1, 2), self.v[read].transpose(1, 2), pos)

    def select(self, rows: Tensor) -> None:
        self.k, self.v = _take(self.k, rows, self.used), _take(self.v, rows, self.used)
        self.step = None

    def fork(self, src: int, dst: int, length: int) -> None:
        """The first ``length`` slots of row src, copied to row dst."""
        self.k[dst, :length] = self.k[src, :length]
        self.v[dst, :length] = self.v[src, :length]

    def clear(self, row: int, length: int) -> None:
        """Zeros: a masked slot has weight 0, and 0 times a NaN left there would still be a NaN."""
        self.k[row, :length] = 0
        self.v[row, :length] = 0

    def grow(self, old: int, new: int) -> None:
        """The first ``old`` slots kept, ``new`` in all."""
        self.k, self.v = _widen(self.k[:, :old], new, 0), _widen(self.v[:, :old], new, 0)


def _aligned(pos: Tensor) -> bool:
    """Whether all rows hold the same run of positions: (B, T)."""
    first = pos[0]
    return bool(first[0] >= 0) and bool((pos == first[0] + torch.arange(pos.size(1))).all())


def _widen(x: Tensor, slots: int, fill: int) -> Tensor:
    """(B, S, ...) -> (B, slots, ...), filled up."""
    wide = x.new_full((x.size(0), slots, *x.shape[2:]), fill)
    wide[:, : x.size(1)] = x
    return wide


def _take(x: Tensor, rows: Tensor, used: int) -> Tensor:
    """The given rows of (B, S, K, D), of which only ``used`` slots are worth copying."""
    taken = x.new_zeros((len(rows), *x.shape[1:]))
    torch.index_select(x[:, :used], 0, rows, out=taken[:, :used])
    return taken
