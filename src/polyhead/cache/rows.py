"""What caches have in common whose rows take their tokens in order: rows come, go and are copied, and layers follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape, Memory
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Watcher


class Arrivals(NamedTuple):
    """The new tokens of one step, looked at once for all layers."""

    rows: Tensor | None  # (B,), which rows; None: all, in order
    pos: Tensor  # (B, T), -1 at padding
    before: Tensor  # (B,) tokens that each row held before this step
    after: Tensor  # (B,) and holds after it
    real: tuple[Tensor, Tensor]  # (row of the step, token) of those that are no padding
    ragged: bool  # whether there is padding

    def write(self, x: Tensor, new: Tensor, slots: Tensor) -> None:
        """x (rows, K, S, D) gets new (B, K, T, D) at slots (B, T); padding is not written."""
        b, t = self.real
        x[b if self.rows is None else self.rows[b], :, slots[b, t]] = new[b, :, t].to(x.dtype)

    def clean(self, x: Tensor) -> Tensor:
        """(B, K, T, D) with zeros for padding: a slot that is masked has weight 0, and 0 times NaN is NaN."""
        return x.masked_fill((self.pos < 0)[:, None, :, None], 0) if self.ragged else x


class RowLayer(ABC):
    """One layer's tensors with a row for each sequence; ``kept`` names them, and says what an empty row holds."""

    kept: Mapping[str, int] = {"k": 0, "v": 0}
    state: tuple[Tensor, ...] = ()

    def __init__(self) -> None:
        self.step: Any = None  # what the cache found out for all layers

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.kept)

    @property
    def watcher(self) -> Watcher | None:
        """Whom attention shows its weights; nothing is kept of it, for a layer that holds its own method outlives its use."""
        return None

    @abstractmethod
    def update(self, kv: KV) -> KV:
        """Store the new slots (B, K, T, D), return all that may be seen (B, K, S, D)."""

    def select(self, rows: Tensor) -> None:
        for name in self.kept:
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def add(self, n: int) -> None:
        """So many empty rows more."""
        lengthen(self, self.kept, n)


class RowCache(ABC):
    """The rows of a cache: how long each is, and what becomes of them. A kind of cache adds where tokens go."""

    name = ""
    lossless, rewinds, grain = False, False, 1
    layers: Sequence[RowLayer]
    kept: ClassVar[dict[str, int]] = {}  # tensors with rows that all layers share

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        if any(shape.states):
            raise UserError(
                f"cache {self.name!r} keeps keys and values, this model keeps a state: use cache 'state'"
            )
        self.lengths, self.max_len, self.device = [0] * n_rows, max_len, shape.device
        self.peak = 0

    def place(self, new: Arrivals) -> Any:
        """What a step's tokens mean for every layer; they get it as ``step``."""
        return new

    @abstractmethod
    def used(self) -> int:
        """Bytes of the storage that hold tokens."""

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.kept) + sum(x.nbytes for x in self.layers)

    def memory(self) -> Memory:
        self.peak = max(self.peak, self.nbytes)
        return Memory(self.nbytes, self.used(), self.peak)

    @torch.no_grad()
    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.cpu()
        assert len(set(rows)) == len(pos), f"{len(pos)} rows of positions for rows {rows}"
        held = torch.tensor([self.lengths[row] for row in rows], dtype=torch.int64)
        there = host >= 0
        if not self.rewinds:
            wanted = torch.where(there, held[:, None] + there.cumsum(1) - 1, -1)
            assert torch.equal(host, wanted), (
                f"cache {self.name!r} takes tokens in order, each once: {host.tolist()}"
            )
        after = torch.maximum(held, host.amax(1) + 1)
        check_fits(max(after.tolist(), default=0), self.max_len)
        for row, end in zip(rows, after.tolist(), strict=True):
            self.lengths[row] = end
        every = rows == list(range(len(self.lengths)))
        index = None if every else torch.tensor(rows, device=self.device)
        b, t = (x.to(self.device) for x in there.nonzero(as_tuple=True))
        held, after = held.to(self.device), after.to(self.device)
        step = self.place(Arrivals(index, pos, held, after, (b, t), len(b) < host.numel()))
        self.peak = max(self.peak, self.nbytes)
        for layer in self.layers:
            layer.step = step

    def room(self, more: int = 0) -> int:
        return (len(self.lengths) + more) * self.max_len - sum(self.lengths)

    def add(self, n: int) -> None:
        self.lengths += [0] * n
        lengthen(self, self.kept, n)
        for layer in self.layers:
            layer.add(n)
        self.peak = max(self.peak, self.nbytes)

    @torch.inference_mode()  # a step may have run in it, and what it made is written nowhere else
    def fork(self, src: int, dst: int) -> None:
        self.lengths[dst] = self.lengths[src]
        for part in self._parts():
            for name in part.kept:
                x = getattr(part, name)
                x[dst] = x[src]

    @torch.inference_mode()
    def release(self, row: int) -> None:
        self.lengths[row] = 0
        for part in self._parts():
            for name, empty in part.kept.items():
                getattr(part, name)[row] = empty

    def select(self, rows: Sequence[int]) -> None:
        rows = [int(row) for row in rows]
        if rows == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for name in self.kept:
            setattr(self, name, getattr(self, name).index_select(0, index))
        for layer in self.layers:
            layer.select(index)
        self.peak = max(self.peak, self.nbytes)

    def _parts(self) -> list[RowCache | RowLayer]:
        return [self, *self.layers]


def check_fits(length: int, max_len: int) -> None:
    """A row that would be longer than the cache allows is a UserError."""
    if length > max_len:
        raise UserError(
            f"position {length - 1} does not fit into a cache of {max_len} positions; "
            "make it longer or the text shorter"
        )


def lengthen(holder: object, kept: Mapping[str, int], n: int) -> None:
    """So many rows more, empty ones, of the tensors that are kept."""
    for name, empty in kept.items():
        x = getattr(holder, name)
        setattr(holder, name, torch.cat([x, x.new_full((n, *x.shape[1:]), empty)]))


def of(x: Tensor, rows: Tensor | None) -> Tensor:
    """The rows of a step."""
    return x if rows is None else x[rows]


def put(x: Tensor, rows: Tensor | None, new: Tensor) -> None:
    """Write the rows of a step."""
    x[slice(None) if rows is None else rows] = new


def along(slots: Tensor, like: Tensor) -> Tensor:
    """Slots (B, K, T) as an index into (B, K, S) or (B, K, S, D)."""
    return slots if like.dim() == 3 else slots[..., None].expand(*slots.shape, like.size(3))
