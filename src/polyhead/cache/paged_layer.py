"""Paged storage of one layer: keys and values are written to slots and read through block tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, WeightsHook


class PagedStepLayout(NamedTuple):
    """Slots that one step writes and pages that it reads, computed once for all layers."""

    write_slots: Tensor  # (B * K * T,): slots of the new tokens in all heads; padding goes to page 0
    read_pages: Tensor  # (B * K * n,): pages of the rows, head by head
    pages: Tensor  # (B, n): block table of the rows
    # (B, 1, S): the same tensor object in all layers, so that values derived from it are computed once
    pos: Tensor
    mask: Tensor  # (B, 1, T, S): which slots each new token may attend to
    padding: Tensor | None  # (B, 1, T, 1) True at padding; None without padding


class PagedLayer:
    """The pages of one layer, (page, K, slot, D).

    Initialised to 0: a masked slot has weight 0, and 0 times NaN is NaN. Page 0 belongs to no sequence.
    """

    state: tuple[Tensor, ...] = ()

    def __init__(self, block_size: int, shape: CacheShape, nonfinite_pages: set[int]) -> None:
        self.k, self.v = shape.make_storage(1, block_size)
        self.nonfinite_pages = nonfinite_pages  # pages of the cache with non-finite numbers
        self.step: PagedStepLayout | None = None
        self.weights_hook: WeightsHook | None = None

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in this layer."""
        return self.nbytes // self.k.size(0)

    def update(self, kv: KV) -> KV:
        """Write (B, K, T, D) and return (B, K, S, D): all slots of the rows' pages."""
        assert self.step is not None, "prepare_step() must be called before update()"
        step = self.step
        new_kv = [part.detach().to(self.k.dtype) for part in (kv.k, kv.v)]
        if step.padding is not None:
            new_kv = [part.masked_fill(step.padding, 0) for part in new_kv]
        # on other devices this would synchronise; there every page is cleared before it is reused
        if self.k.device.type == "cpu" and not math.isfinite(new_kv[0].sum() + new_kv[1].sum()):
            slots_per_page = self.k.size(1) * self.k.size(2)
            self.nonfinite_pages |= {slot // slots_per_page - 1 for slot in step.write_slots.tolist()} - {-1}
        for x, part in zip((self.k, self.v), new_kv, strict=True):
            x.flatten(0, 2).index_copy_(0, step.write_slots, part.flatten(0, 2))
        return PagedKV(self._make_view(step), step.pos, step.mask)

    def slot_mapping(self) -> SlotMapping | None:
        """Slots of this step's tokens, for kernels that write keys and values; None if there is padding."""
        assert self.step is not None, "prepare_step() must be called before slot_mapping()"
        step = self.step
        if step.padding is not None:
            return None
        first_head_slots = (
            step.write_slots.view(len(step.pages), self.k.size(1), -1)[:, 0].contiguous().flatten()
        )
        return SlotMapping(self._make_view(step), first_head_slots, step.pos, step.mask)

    def _make_view(self, step: PagedStepLayout) -> PagedView:
        return PagedView(self.k, self.v, step.pages, partial(gather_pages, step.read_pages, len(step.pages)))

    def copy_pages(self, pages: Sequence[tuple[int, int]]) -> None:
        """Copy pages; each pair is (source, target)."""
        if pages:
            src, dst = (torch.tensor(side, device=self.k.device) + 1 for side in zip(*pages, strict=True))
            for x in (self.k, self.v):
                x.index_copy_(0, dst, x.index_select(0, src))

    def clear_pages(self, pages: Sequence[int]) -> None:
        """Set pages to 0."""
        if pages:
            for x in (self.k, self.v):
                x.index_fill_(0, torch.tensor(pages, device=x.device) + 1, 0)

    @torch.inference_mode(False)  # the new tensors may be written to outside of inference mode
    @torch.no_grad()
    def grow(self, n: int) -> None:
        """Append n pages."""
        self.k, self.v = (torch.cat([x, x.new_zeros(n, *x.shape[1:])]) for x in (self.k, self.v))

    def select(self, rows: Tensor) -> None:
        raise AssertionError(
            "rows of a paged cache are reordered in its block tables: call select on the cache"
        )


class PagedView(NamedTuple):
    """Page storage, the block table of some rows, and the function that gathers their slots."""

    k: Tensor  # (page, K, slot, D)
    v: Tensor
    table: Tensor  # (B, n) int64: the pages of each row
    gather: Callable[[Tensor], Tensor]  # k or v -> (B, K, n * slot, D)


class SlotMapping(NamedTuple):
    """Slot mapping of one step, from one layer; it is identical in every layer."""

    pages: PagedView
    # (B * T,) int64: slot of each new token in the first head, counted from the start of the storage
    slots: Tensor
    pos: Tensor  # (B, 1, S): positions of the first S slots; the others are empty
    mask: Tensor  # (B, 1, T, S): which of these slots each new token may attend to


class PagedKV(KV):
    """A KV stored in pages: k and v are gathered on first access; kernels read the pages instead."""

    def __init__(self, pages: PagedView, pos: Tensor, mask: Tensor) -> None:
        """Slots at positions (B, 1, n * slot), with the queries' mask (B, 1, T, n * slot)."""
        self.pages, self.pos, self.log_count, self.mask = pages, pos, None, mask

    @cached_property
    def k(self) -> Tensor:  # type: ignore[override]
        return self.pages.gather(self.pages.k)

    @cached_property
    def v(self) -> Tensor:  # type: ignore[override]
        return self.pages.gather(self.pages.v)


def gather_pages(page_ids: Tensor, n_rows: int, x: Tensor) -> Tensor:
    """Gather the slots of rows with pages ``page_ids`` (B * K * n,): (page, K, slot, D) -> (B, K, S, D)."""
    return x.flatten(2).flatten(0, 1).index_select(0, page_ids).view(n_rows, x.size(1), -1, x.size(3))
