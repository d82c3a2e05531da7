"""Shared row handling of caches that store tensors per batch row: append, fork, release and reorder rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.core.array_types import Ints
from polyhead.core.errors import UserError
from polyhead.nn.cache import CacheMemory, CacheShape
from polyhead.nn.device import move_tensor
from polyhead.nn.kv import KV, WeightsHook


class RowHistory:
    """The storage row of each slot of each row.

    A row writes into a storage row of its own, its home, and reads the slots of its ancestors in theirs.
    After a selection the first child of a row takes its home; the others take homes of rows that have ended,
    where no remaining row reads a slot that they will write.
    """

    def __init__(self, n_rows: int, n_slots: int) -> None:
        self.homes: Ints = np.arange(n_rows)
        self.n_storage_rows = n_rows
        self.origins: Ints = np.repeat(self.homes[:, None], n_slots, 1)  # (rows, slots)
        self.is_shared = False  # whether a slot may belong to several rows

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> bool:
        """Row i becomes the old row ``rows[i]`` of ``lengths[i]`` tokens; False if the rows must be moved."""
        origins, slots = self.origins[rows], np.arange(self.origins.shape[1])
        is_used = slots < np.array(lengths)[:, None]
        _, first_children = np.unique(rows, return_index=True)
        homes = np.full(len(rows), -1)
        homes[first_children] = self.homes[np.array(rows)[first_children]]
        others = np.flatnonzero(homes < 0)
        if len(others):
            read_ends = np.zeros(self.n_storage_rows, np.int64)  # after the last slot that any row reads
            np.maximum.at(read_ends, origins[is_used], np.broadcast_to(slots + 1, origins.shape)[is_used])
            free = np.setdiff1d(np.arange(self.n_storage_rows), homes)[: len(others)]
            if len(free) < len(others) or (read_ends[free] > np.array(lengths)[others]).any():
                return False
            homes[others], self.is_shared = free, True
        self.homes, self.origins = homes, np.where(is_used, origins, homes[:, None])
        return True

    def grow(self, n: int) -> None:
        """Append n slots to each row."""
        self.origins = np.concatenate([self.origins, np.repeat(self.homes[:, None], n, 1)], 1)


class StepTokens(NamedTuple):
    """The new tokens of one step, computed once for all layers."""

    rows: Tensor | None  # (B,) indices of the cache rows; None: all, in order
    pos: Tensor  # (B, T), -1 at padding
    len_before: Tensor  # (B,) cached tokens of each row before this step
    len_after: Tensor  # (B,) cached tokens of each row after this step
    valid_index: tuple[Tensor, Tensor]  # (row of the step, token) of the tokens that are not padding
    has_padding: bool

    def write(self, x: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write values (B, K, T, D) into x (rows, K, S, D) at slots (B, T); padding is not written."""
        b, t = self.valid_index
        x[b if self.rows is None else self.rows[b], :, slots[b, t]] = values[b, :, t].to(x.dtype)

    def zero_padding(self, x: Tensor) -> Tensor:
        """Replace padding in x (B, K, T, D) by 0: a masked slot has weight 0, and 0 times NaN is NaN."""
        return x.masked_fill((self.pos < 0)[:, None, :, None], 0) if self.has_padding else x


class RowLayer(ABC):
    """One layer's tensors, a row per sequence; ``row_tensors`` maps names to the value of empty rows."""

    row_tensors: Mapping[str, int] = {"k": 0, "v": 0}
    state: tuple[Tensor, ...] = ()
    weights_hook: WeightsHook | None = None

    def __init__(self) -> None:
        self.step: Any = None  # the step layout that the cache computed for all layers

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.row_tensors)

    @abstractmethod
    def update(self, kv: KV) -> KV:
        """Store the new keys and values (B, K, T, D) and return what attention reads (B, K, S, D)."""

    def select(self, rows: Tensor) -> None:
        for name in self.row_tensors:
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def append_rows(self, n: int) -> None:
        """Append n empty rows."""
        grow_tensors(self, self.row_tensors, n)


class RowCache(ABC):
    """Base of caches with a row per sequence: lengths and row operations. Subclasses add the step layout."""

    name = ""
    lossless, rewinds, block_size = False, False, 1
    layers: Sequence[RowLayer]
    row_tensors: ClassVar[dict[str, int]] = {}  # per-row tensors shared by all layers
    has_growing_slots = False  # whether storage gets more slots as rows grow

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        if any(shape.states):
            raise UserError(
                f"cache {self.name!r} stores keys and values, but this model has a recurrent state: "
                "use cache 'state'"
            )
        self.lengths, self.max_len, self.device = [0] * n_rows, max_len, shape.device
        self.peak_bytes = 0

    def plan_step(self, tokens: StepTokens) -> Any:
        """Return the step layout of the new tokens; every layer gets it as ``step``."""
        return tokens

    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes of the storage that hold cached tokens."""

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.row_tensors) + sum(
            x.nbytes for x in self.layers
        )

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    def memory_usage(self) -> CacheMemory:
        self.peak_bytes = max(self.peak_bytes, self.nbytes)
        return CacheMemory(self.nbytes, self.used_bytes(), self.peak_bytes)

    @torch.no_grad()
    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host, pos = list(rows), pos.cpu(), move_tensor(pos, self.device)
        assert len(set(rows)) == len(pos), f"{len(pos)} rows of positions for rows {rows}"
        len_before = torch.tensor([self.lengths[row] for row in rows], dtype=torch.int64)
        is_token = host >= 0
        if not self.rewinds:
            expected_pos = torch.where(is_token, len_before[:, None] + is_token.cumsum(1) - 1, -1)
            assert torch.equal(host, expected_pos), (
                f"cache {self.name!r} expects tokens in order, each once: {host.tolist()}"
            )
        len_after = torch.maximum(len_before, host.amax(1) + 1)
        check_cache_len(max(len_after.tolist(), default=0), self.max_len)
        for row, end in zip(rows, len_after.tolist(), strict=True):
            self.lengths[row] = end
        index = self.row_index(rows)
        b, t = (x.to(self.device) for x in is_token.nonzero(as_tuple=True))
        len_before, len_after = len_before.to(self.device), len_after.to(self.device)
        step = self.plan_step(StepTokens(index, pos, len_before, len_after, (b, t), len(b) < host.numel()))
        self.peak_bytes = max(self.peak_bytes, self.nbytes)
        for layer in self.layers:
            layer.step = step

    def row_index(self, rows: list[int]) -> Tensor | None:
        """The index of the rows of a step; None: all, in order."""
        return None if rows == list(range(len(self.lengths))) else torch.tensor(rows, device=self.device)

    def free_tokens(self, extra_rows: int = 0) -> int:
        return (len(self.lengths) + extra_rows) * self.max_len - sum(self.lengths)

    def append_rows(self, n: int) -> None:
        self.lengths += [0] * n
        grow_tensors(self, self.row_tensors, n)
        for layer in self.layers:
            layer.append_rows(n)
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    @torch.inference_mode()  # tensors made by a step in inference mode can be written only in that mode
    def fork(self, src: int, dst: int) -> None:
        self.lengths[dst] = self.lengths[src]
        for part in self._parts():
            for name in part.row_tensors:
                x = getattr(part, name)
                x[dst] = x[src]

    @torch.inference_mode()
    def release(self, row: int) -> None:
        self.lengths[row] = 0
        for part in self._parts():
            for name, empty in part.row_tensors.items():
                getattr(part, name)[row] = empty

    def select(self, rows: Sequence[int]) -> None:
        rows = [int(row) for row in rows]
        if rows == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for name in self.row_tensors:
            setattr(self, name, getattr(self, name).index_select(0, index))
        for layer in self.layers:
            layer.select(index)
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        index = torch.tensor([int(row) for row in rows], dtype=torch.int64, device=self.device)
        tensors = {"lengths": torch.tensor([self.lengths[int(row)] for row in rows], dtype=torch.int64)}
        for prefix, part in self._named_parts():
            for name in part.row_tensors:
                tensors[prefix + name] = getattr(part, name).index_select(0, index)
        return tensors

    @torch.inference_mode(False)  # the new tensors may be written to outside of inference mode
    @torch.no_grad()
    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = read_lengths(self.name, tensors, self.max_len)
        parts = self._named_parts()
        check_tensor_names(
            self.name,
            tensors,
            {"lengths", *(prefix + name for prefix, part in parts for name in part.row_tensors)},
        )
        joined = []
        for prefix, part in parts:
            slot_dim = (1 if part is self else 2) if self.has_growing_slots else None
            for name, empty in part.row_tensors.items():
                x, rows = getattr(part, name), tensors[prefix + name]
                check_tensor(self.name, prefix + name, rows, x, len(lengths), slot_dim)
                joined.append((part, name, append_padded(x, rows.to(x.device), slot_dim, empty)))
        for part, name, x in joined:
            setattr(part, name, x)
        self.lengths += lengths
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def _parts(self) -> list[RowCache | RowLayer]:
        return [self, *self.layers]

    def _named_parts(self) -> list[tuple[str, RowCache | RowLayer]]:
        return [("", self), *((f"layers.{i}.", layer) for i, layer in enumerate(self.layers))]


def check_cache_len(length: int, max_len: int) -> None:
    """Raise UserError if a row of ``length`` tokens exceeds the maximum length of the cache."""
    if length > max_len:
        raise UserError(
            f"position {length - 1} does not fit into a cache of {max_len} positions; increase max_len or "
            "shorten the text"
        )


def grow_tensors(holder: object, row_tensors: Mapping[str, int], n: int) -> None:
    """Append n empty rows to each of the named tensors of ``holder``."""
    for name, empty in row_tensors.items():
        x = getattr(holder, name)
        setattr(holder, name, torch.cat([x, x.new_full((n, *x.shape[1:]), empty)]))


def append_padded(x: Tensor, rows: Tensor, slot_dim: int | None, empty: int) -> Tensor:
    """Append rows to x; the one with fewer slots along ``slot_dim`` gets empty ones at the end."""
    if slot_dim is None or x.size(slot_dim) == rows.size(slot_dim):
        return torch.cat([x, rows])
    n_slots = max(x.size(slot_dim), rows.size(slot_dim))
    after = [0, 0] * (x.dim() - 1 - slot_dim)
    padded = (F.pad(y, (*after, 0, n_slots - y.size(slot_dim)), value=empty) for y in (x, rows))
    return torch.cat([*padded])


def read_lengths(cache: str, tensors: Mapping[str, Tensor], max_len: int) -> list[int]:
    """The number of tokens of each imported row; UserError if it does not fit."""
    if "lengths" not in tensors or tensors["lengths"].dim() != 1 or tensors["lengths"].is_floating_point():
        raise UserError(f"cache {cache!r}: these tensors are no exported rows: expected integers 'lengths'")
    lengths: list[int] = tensors["lengths"].tolist()
    if min(lengths, default=0) < 0:
        raise UserError(f"cache {cache!r}: an imported row has {min(lengths)} tokens, expected 0 or more")
    check_cache_len(max(lengths, default=0), max_len)
    return lengths


def check_tensor_names(cache: str, tensors: Mapping[str, Tensor], expected: set[str]) -> None:
    """Raise UserError if imported rows have missing or additional tensors."""
    if tensors.keys() != expected:
        missing, surplus = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)
        difference = f"{missing[0]!r} is missing" if missing else f"{surplus[0]!r} is not among this cache's"
        raise UserError(
            f"cache {cache!r}: the imported rows belong to another model or other options: {difference}"
        )


def check_tensor(
    cache: str, name: str, rows: Tensor, x: Tensor, n_rows: int, slot_dim: int | None = None
) -> None:
    """Raise UserError if imported rows differ from x (rows, ...) in dtype or in a size other than slots."""
    expected = [n_rows, *x.shape[1:]]
    if slot_dim is not None and rows.dim() == x.dim():
        expected[slot_dim] = rows.size(slot_dim)
    if list(rows.shape) != expected or rows.dtype != x.dtype:
        raise UserError(
            f"cache {cache!r}: the imported rows belong to another model or other options: {name!r} is "
            f"{rows.dtype} of shape {tuple(rows.shape)}, expected {x.dtype} of shape {tuple(expected)}"
        )


def select_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """The rows of a step; None: all of them, without a copy."""
    return x if rows is None else x[rows]


def write_rows(x: Tensor, rows: Tensor | None, values: Tensor) -> None:
    """Write values into the rows of a step; None: into all of them."""
    x[slice(None) if rows is None else rows] = values


def broadcast_slots(slots: Tensor, target: Tensor) -> Tensor:
    """Expand slots (B, K, T) to an index for gather and scatter on ``target``: (B, K, S) or (B, K, S, D)."""
    return slots if target.dim() == 3 else slots[..., None].expand(*slots.shape, target.size(3))
