"""Views of keys and values in cache storage, for kernels that read and write them in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from polyhead.nn.kv import KV


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
