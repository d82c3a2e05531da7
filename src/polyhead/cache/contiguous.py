"""Caches with the keys and values of each row in one tensor: dynamic, concatenated; static, with slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.cache.paged_layer import PagedView, SlotMapping
from polyhead.cache.row_cache import RowCache, RowHistory, RowLayer, StepTokens, check_cache_len, select_rows
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.device import move_tensor
from polyhead.nn.kv import KV, visible


class DynamicStepLayout(NamedTuple):
    """Slots of the new tokens of one step."""

    tokens: StepTokens
    slots: Tensor  # (B, T)
    n_new_slots: int  # slots by which storage grows
    pos: Tensor  # (B, 1, S)
    mask: Tensor  # (B, 1, T, S)


@CACHE.register("growing")
class DynamicCache(RowCache):
    """Append keys and values in order of arrival.

    Storage is as long as the longest row, and is copied at every step. A position that is written again gets
    a new slot, and its old slot stays empty.

    Paper: Pope et al., 2022, sec. 3.3
    When: as a baseline; when the length of texts is unknown and memory is scarce. Lossless
    Recipe: generation: {cache: growing}
    """

    name = "growing"
    lossless, rewinds, has_growing_slots = True, True, True
    row_tensors: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        super().__init__(shape, n_rows, max_len)
        self.pos = torch.full((n_rows, 0), -1, device=shape.device)
        self.layers = [DynamicLayer(shape, n_rows) for _ in range(shape.n_layers)]
        self.slot_bytes = 8 + shape.n_layers * shape.token_bytes

    def used_bytes(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot_bytes

    def plan_step(self, tokens: StepTokens) -> DynamicStepLayout:
        rows = torch.arange(len(self.pos), device=self.device) if tokens.rows is None else tokens.rows
        slot = torch.arange(self.pos.size(1), device=self.device) + 1
        ends = ((self.pos[rows] >= 0) * slot).amax(1) if len(slot) and len(rows) else torch.zeros_like(rows)
        if len(tokens.valid_index[0]) and bool(
            (tokens.pos.amax(1) >= 0).any() & (_min_positions(tokens.pos) < tokens.len_before).any()
        ):
            is_rewritten = (self.pos[rows][:, None] == tokens.pos[:, :, None]) & (tokens.pos >= 0)[:, :, None]
            self.pos[rows] = self.pos[rows].masked_fill(is_rewritten.any(1), -1)
        slots = ends[:, None] + (tokens.pos >= 0).cumsum(1) - 1
        n_new_slots = (
            max(0, int((ends + (tokens.pos >= 0).sum(1)).amax()) - self.pos.size(1)) if len(rows) else 0
        )
        self.pos = torch.cat([self.pos, self.pos.new_full((len(self.pos), n_new_slots), -1)], 1)
        b, t = tokens.valid_index
        self.pos[rows[b], slots[b, t]] = tokens.pos[b, t]
        slot_pos = select_rows(self.pos, tokens.rows)[:, None]
        return DynamicStepLayout(tokens, slots, n_new_slots, slot_pos, visible(tokens.pos, slot_pos, True))


class DynamicLayer(RowLayer):
    """Keys and values of one layer: (row, K, slot, D)."""

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        super().__init__()
        self.k, self.v = shape.make_storage(n_rows, 0)

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out."""
        tokens, slots, n_new_slots, pos, mask = self.step
        self.k, self.v = F.pad(self.k, (0, 0, 0, n_new_slots)), F.pad(self.v, (0, 0, 0, n_new_slots))
        tokens.write(self.k, kv.k, slots)
        tokens.write(self.v, kv.v, slots)
        if tokens.rows is None:
            return KV(self.k, self.v, pos, mask=mask)
        return KV(self.k[tokens.rows], self.v[tokens.rows], pos, mask=mask)


def _min_positions(pos: Tensor) -> Tensor:
    """The smallest position of each row, without padding: (B, T) -> (B,)."""
    return pos.masked_fill(pos < 0, 2**62).amin(1)


class StaticStepLayout(NamedTuple):
    """Slots that one step writes and attends to, computed once for all layers."""

    rows: Tensor | None  # (B,) cache rows of this step; None: all, in order
    # slots of the new tokens: one slice for all rows, or (row, slot)
    write_slots: slice | tuple[Tensor, Tensor]
    # (B, 1, S): the same tensor object in all layers, so that values derived from it are computed once
    pos: Tensor
    mask: Tensor  # (B, 1, T, S): which slots each new token may attend to
    padding: Tensor | None  # (B, 1, T, 1) True at padding; None without padding
    used_slots: int  # number of leading slots that hold tokens of these rows; the others are empty


@CACHE.register("static")
class StaticCache(RowCache):
    """One row of slots per sequence: slot = position, and one spare slot takes padding.

    Stores the projected keys and values of each layer, (rows, K, slots, D). Storage starts empty and grows by
    ``chunk`` slots, or an eighth, up to ``max_len``. Attention reads all of it, unused slots at position -1:
    a few wasted products cost less than keys that are not contiguous. Decoding step by step gives the results
    of the full forward pass; beam search reorders the rows.

    With ``preallocate`` all ``max_len`` slots are there from the start, and a step of one token for each row
    writes into buffers that stay where they are, positions and mask included, until the number of rows
    changes: ``torch.compile`` makes one graph of it, which a GPU can capture as a CUDA graph.

    When: the default for keys and values; lossless
    Options:
      chunk: slots by which storage grows, or an eighth of it, whichever is more
      preallocate: allocate all slots at once, in buffers that steps do not replace
    """

    name = "static"
    lossless, rewinds, has_growing_slots = True, True, True
    row_tensors: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        chunk: PositiveInt = 32,
        preallocate: bool = False,
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        self.chunk = chunk
        self.used_slots = 0  # slots that any row has used
        self.pos = torch.full((n_rows, 1), -1, device=shape.device)  # the last slot is the spare one
        self.layers: list[StaticLayer] = [StaticLayer(shape, n_rows) for _ in range(shape.n_layers)]
        self.slot_bytes = 8 + shape.n_layers * shape.token_bytes
        self.preallocate = preallocate
        self.fixed_layout: StaticStepLayout | None = None  # of steps with one token for each row
        # of reordered rows that were not moved; kernels read them in place
        self.history: RowHistory | None = None
        if preallocate:
            self._grow(max_len)
        self.peak_bytes = self.nbytes

    def used_bytes(self) -> int:
        """Bytes of all slots up to the last position of each row."""
        return sum(self.lengths) * self.slot_bytes

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host, pos = list(rows), pos.tolist(), move_tensor(pos, self.device)
        assert len(set(rows)) == len(host), f"{len(host)} rows of positions for rows {rows}"
        ends = [max(self.lengths[row], 1 + max(at)) for row, at in zip(rows, host, strict=True)]
        longest = max(ends, default=0)
        check_cache_len(longest, self.max_len)
        rewrites = any(min(at) < self.lengths[row] for row, at in zip(rows, host, strict=True))
        for row, end in zip(rows, ends, strict=True):
            self.lengths[row] = end
        if longest >= self.pos.size(1):
            self._grow(longest)
        if self.history is not None and self.history.is_shared and rewrites:
            self._move_rows()
        self.used_slots = max(self.used_slots, longest)
        step = self._build_layout(rows, pos, host)
        if self.history is not None and self.layers[0].history is None:
            self.history = None  # the last step moved the rows of each layer
        for layer in self.layers:
            layer.step, layer.used_slots = step, self.used_slots

    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        self._move_rows()
        super().import_rows(tensors)
        self.used_slots = max(self.used_slots, self.pos.size(1) - 1)
        for layer in self.layers:
            layer.used_slots, layer.spare_storage = self.used_slots, []

    def _build_layout(self, rows: list[int], pos: Tensor, host_pos: list[list[int]]) -> StaticStepLayout:
        """Record the new positions; aligned rows are written as one slice, others by index."""
        index = self.row_index(rows)
        if self.preallocate and index is None and pos.size(1) == 1:
            return self._fill_fixed_layout(pos)
        used_slots = max((self.lengths[row] for row in rows), default=0)
        if index is None and _is_aligned(host_pos):
            slots = slice(host_pos[0][0], host_pos[0][-1] + 1)
            self.pos[:, slots] = pos
            slot_pos = self.pos[:, None]
            return StaticStepLayout(None, slots, slot_pos, visible(pos, slot_pos, True), None, used_slots)
        row_ids = torch.arange(len(pos), device=self.device) if index is None else index
        padding = pos < 0 if min(map(min, host_pos)) < 0 else None
        write_slots = (
            row_ids[:, None],
            pos if padding is None else pos.masked_fill(padding, self.pos.size(1) - 1),
        )
        self.pos[write_slots] = pos
        slot_pos = select_rows(self.pos, index)[:, None]
        mask = visible(pos, slot_pos, True)
        return StaticStepLayout(
            index,
            write_slots,
            slot_pos,
            mask,
            None if padding is None else padding[:, None, :, None],
            used_slots,
        )

    def _fill_fixed_layout(self, pos: Tensor) -> StaticStepLayout:
        """The layout of one token for each row, in the same tensors at every step."""
        is_padding = pos < 0
        slots = pos.masked_fill(is_padding, self.pos.size(1) - 1)
        self.pos.scatter_(1, slots, pos)
        mask, padding = visible(pos, self.pos[:, None], True), is_padding[:, None, :, None]
        layout = self.fixed_layout
        if layout is None or len(layout.mask) != len(pos):
            rows = torch.arange(len(pos), device=self.device)[:, None]
            layout = StaticStepLayout(
                None, (rows, slots), self.pos[:, None], mask, padding.clone(), self.pos.size(1)
            )
            self.fixed_layout = layout
            return layout
        assert not isinstance(layout.write_slots, slice) and layout.padding is not None
        layout.write_slots[1].copy_(slots)
        layout.mask.copy_(mask)
        layout.padding.copy_(padding)
        return layout

    def append_rows(self, n: int) -> None:
        self._move_rows()
        super().append_rows(n)
        self.fixed_layout = None

    def fork(self, src: int, dst: int) -> None:
        self._move_rows()
        super().fork(src, dst)

    def release(self, row: int) -> None:
        self._move_rows()
        super().release(row)

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        self._move_rows()
        return super().export_rows(rows)

    def select(self, rows: Sequence[int]) -> None:
        if not self.preallocate and self._select_in_place([int(row) for row in rows]):
            return
        self._move_rows()
        if not self.preallocate or len(rows) != len(self.lengths):
            super().select(rows)
            self.fixed_layout = None
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.device)
        with torch.inference_mode():  # which may write tensors made in any mode
            for x in (self.pos, *(x for layer in self.layers for x in (layer.k, layer.v))):
                x.copy_(x.index_select(0, index))

    def _select_in_place(self, rows: list[int]) -> bool:
        """Reorder the rows without moving keys and values, if their storage has room and kernels read it."""
        n_storage_rows = self.layers[0].k.size(0) if self.layers else 0
        if self.device.type != "cpu" or not self.layers or not self.layers[0].is_read_in_place:
            return False
        if not n_storage_rows // 2 < len(rows) <= n_storage_rows:  # storage shrinks with the rows
            return False
        lengths = [self.lengths[row] for row in rows]
        history = self.history or RowHistory(len(self.lengths), self.pos.size(1))
        if not history.select(rows, lengths):
            return False
        self.history, self.lengths = history, lengths
        self.pos = self.pos.index_select(0, torch.tensor(rows, dtype=torch.int64))
        for layer in self.layers:
            layer.history, layer.step = history, None
        return True

    def _move_rows(self) -> None:
        """Move the slots of reordered rows into one storage row each."""
        self.history = None
        for layer in self.layers:
            layer.move_rows()

    def _grow(self, n_slots: int) -> None:
        """Grow storage to at least ``n_slots`` slots; the spare slot stays last."""
        n_old_slots = self.pos.size(1) - 1
        n_new_slots = (
            min(max(n_slots, n_old_slots + max(self.chunk, n_old_slots // 8)), self.max_len) - n_old_slots
        )
        self.pos = torch.cat([self.pos, self.pos.new_full((len(self.pos), n_new_slots), -1)], 1)
        if self.history is not None:
            self.history.grow(n_new_slots)
        for layer in self.layers:
            layer.grow(n_new_slots)
        self.peak_bytes = max(self.peak_bytes, self.nbytes)


class StaticLayer(RowLayer):
    """The slots of one layer, (row, K, slot, D).

    Initialised to 0: a masked slot has weight 0, and 0 times NaN is NaN. Reordering rows copies between two
    storages in turn, because newly allocated memory costs more than the copy.
    """

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        super().__init__()
        self.k, self.v = shape.make_storage(n_rows, 1)
        self.spare_storage: list[Tensor] = []  # target of the next select, after the first one
        self.used_slots = 0  # slots that any row has used; the others are not copied
        self.history: RowHistory | None = None  # of reordered rows that were not moved
        self.is_read_in_place = False  # whether kernels read the last step

    @property
    def nbytes(self) -> int:
        return sum(x.untyped_storage().nbytes() for x in (self.k, self.v, *self.spare_storage))

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: all slots."""
        assert self.step is not None, "prepare_step() must be called before update()"
        self.move_rows()
        self.is_read_in_place = False
        rows, write, pos, mask, padding, _ = self.step
        for x, values in ((self.k, kv.k), (self.v, kv.v)):
            values = values.to(x.dtype) if padding is None else values.to(x.dtype).masked_fill(padding, 0)
            if isinstance(write, slice):
                x[:, :, write] = values
            else:  # two index tensors around a slice: their dimensions come first
                x[write[0], :, write[1]] = values.transpose(1, 2)
        return KV(select_rows(self.k, rows), select_rows(self.v, rows), pos, mask=mask)

    def slot_mapping(self) -> SlotMapping | None:
        """Slots of this step's tokens, for kernels that write keys and values; None if there is padding."""
        assert self.step is not None, "prepare_step() must be called before slot_mapping()"
        _, write_slots, pos, mask, padding, slots = self.step
        if padding is not None:
            return None
        self.is_read_in_place = True
        if isinstance(write_slots, slice):
            row, slot = torch.arange(len(mask))[:, None], torch.arange(write_slots.start, write_slots.stop)
        else:
            row, slot = write_slots
        (_, K, S, _), row_ids = self.k.shape, row[:, 0]
        pos, mask = pos[..., :slots], mask[..., :slots].contiguous()
        if self.history is None:
            pages = PagedView(self.k, self.v, row, lambda x: x.index_select(0, row_ids))
            return SlotMapping(pages, (row * (K * S) + slot).flatten(), pos, mask)
        # pages of one slot, which starts in its first head; numpy takes a tensor of one row for an integer
        origins = self.history.origins[row_ids.numpy(), :slots]
        table = torch.from_numpy(origins * (K * S) + np.arange(slots))
        n_pages = self.k.size(0) * K * S - (K - 1) * S
        k, v = (
            x.as_strided((n_pages, K, 1, x.size(3)), (x.size(3), S * x.size(3), x.size(3), 1))
            for x in (self.k, self.v)
        )
        homes = torch.from_numpy(self.history.homes)[row_ids][:, None]
        pages = PagedView(k, v, table, lambda x: x.squeeze(2)[table].transpose(1, 2))
        return SlotMapping(pages, (homes * (K * S) + slot).flatten(), pos, mask)

    def move_rows(self) -> None:
        """Move the slots of reordered rows into one storage row each."""
        if self.history is None:
            return
        rows, slots = torch.from_numpy(self.history.origins), torch.arange(self.history.origins.shape[1])
        self.k, self.v = (
            x.transpose(1, 2)[rows, slots].transpose(1, 2).contiguous() for x in (self.k, self.v)
        )
        self.history, self.spare_storage = None, []

    def select(self, rows: Tensor) -> None:
        targets = [x[: len(rows)] for x in self.spare_storage if x.size(0) >= len(rows)]
        for x, to in zip((self.k, self.v), targets, strict=False):
            torch.index_select(x[:, :, : self.used_slots], 0, rows, out=to[:, :, : self.used_slots])
        if not targets:
            targets = [x.index_select(0, rows) for x in (self.k, self.v)]
        self.spare_storage, (self.k, self.v), self.step = [self.k, self.v], targets, None

    def append_rows(self, n: int) -> None:
        super().append_rows(n)
        self.spare_storage = []

    def grow(self, n: int) -> None:
        """Append n slots to each row."""
        self.k, self.v = (
            torch.cat([x, x.new_zeros(*x.shape[:2], n, x.size(3))], 2) for x in (self.k, self.v)
        )
        self.spare_storage = []


def _is_aligned(pos: list[list[int]]) -> bool:
    """Whether all rows of pos (B, T) have the same consecutive positions."""
    first = pos[0][0]
    return first >= 0 and pos[0] == list(range(first, first + len(pos[0]))) and pos.count(pos[0]) == len(pos)
