"""The pages of one layer: keys and values are written into them, and read through the table of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.stored import Pages, Places, Stored, gathered
from polyhead.nn.kv import KV, Watcher


class Step(NamedTuple):
    """Where one step writes and what it reads, computed once for all layers."""

    write: Tensor  # (B * K * T,): the slots of the new tokens in all heads; padding goes to page 0
    read: Tensor  # (B * K * n,): the pages of the rows, head by head
    pages: Tensor  # (B, n): the pages of the rows
    pos: Tensor  # (B, 1, S): one object for all layers, so what depends on it can be computed once
    seen: Tensor  # (B, 1, T, S): which slots each new token may see
    padding: Tensor | None  # (B, 1, T, 1) True at tokens that are none; None where there are no such


class PagedLayer:
    """The pages of one layer, (page, K, slot, D), finite from the beginning: a masked slot has weight 0, and 0 times NaN
    is NaN. Page 0 belongs to nobody.
    """

    state: tuple[Tensor, ...] = ()

    def __init__(self, block: int, shape: CacheShape, dirty: set[int]) -> None:
        self.k, self.v = shape.storage(1, block)
        self.dirty = dirty  # pages of the cache that got what is not finite
        self.step: Step | None = None
        self.watcher: Watcher | None = None

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.nbytes // self.k.size(0)

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: all slots of the rows' pages."""
        assert self.step is not None, "begin() comes before update()"
        step = self.step
        new = [part.detach().to(self.k.dtype) for part in (kv.k, kv.v)]
        if step.padding is not None:
            new = [part.masked_fill(step.padding, 0) for part in new]
        # another device would have to be waited for; there every page is cleared before it is used again
        if self.k.device.type == "cpu" and not math.isfinite(new[0].sum() + new[1].sum()):
            self.soil(step.write)
        for x, part in zip((self.k, self.v), new, strict=True):
            x.flatten(0, 2).index_copy_(0, step.write, part.flatten(0, 2))
        return Stored.of(self._pages(step), step.pos, step.seen)

    def places(self) -> Places | None:
        """Where this step's tokens go, for who writes them there himself; None where some are padding."""
        assert self.step is not None, "begin() comes before places()"
        step = self.step
        if step.padding is not None:
            return None
        first = step.write.view(len(step.pages), self.k.size(1), -1)[:, 0].contiguous().flatten()
        return Places(self._pages(step), first, step.pos, step.seen)

    def _pages(self, step: Step) -> Pages:
        return Pages(self.k, self.v, step.pages, partial(gathered, step.read, len(step.pages)))

    def soil(self, slots: Tensor) -> None:
        """Remember that the pages of these slots hold what is not finite: cleared before somebody else gets them."""
        page = self.k.size(1) * self.k.size(2)
        self.dirty |= {slot // page - 1 for slot in slots.tolist()} - {-1}

    def copy(self, pages: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (from, to) each."""
        if pages:
            src, dst = (torch.tensor(side, device=self.k.device) + 1 for side in zip(*pages, strict=True))
            for x in (self.k, self.v):
                x.index_copy_(0, dst, x.index_select(0, src))

    def clear(self, pages: Sequence[int]) -> None:
        """Fill pages with 0."""
        if pages:
            for x in (self.k, self.v):
                x.index_fill_(0, torch.tensor(pages, device=x.device) + 1, 0)

    @torch.inference_mode(False)  # what is made here is written to later, perhaps outside of that mode
    @torch.no_grad()
    def grow(self, more: int) -> None:
        """So many pages more."""
        self.k, self.v = (torch.cat([x, x.new_zeros(more, *x.shape[1:])]) for x in (self.k, self.v))

    def select(self, rows: Tensor) -> None:
        raise AssertionError("rows of a paged cache are reordered in its tables: select on the cache")
