"""Keys and values where a cache keeps them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Self

from torch import Tensor

from polyhead.nn.kv import KV


class Pages(NamedTuple):
    """Where the slots of some rows lie, and how to bring them together."""

    k: Tensor  # (page, K, slot, D)
    v: Tensor
    table: Tensor  # (B, n) int64: the pages of each row
    gather: Callable[[Tensor], Tensor]  # of k or v -> (B, K, n * slot, D)


class Places(NamedTuple):
    """Where the keys and values of a step lie, in the layer that tells it; in the others they lie as there."""

    pages: Pages
    write: Tensor  # (B * T,) int64: the slot of each new token in the first head, counted from that of the first page
    pos: Tensor  # (B, 1, S): of the first S slots there; the others are empty
    seen: Tensor  # (B, 1, T, S): which of them each new token may see


class Stored(KV):
    """A KV that lies in pages: who can read them there need not wait for k and v, which are brought together when asked for."""

    pages: Pages

    @classmethod
    def of(cls, pages: Pages, pos: Tensor, seen: Tensor) -> Self:
        """Slots at positions (B, 1, n * slot), of which queries see ``seen`` (B, 1, T, n * slot)."""
        made = cls(pages.k, pages.v, pos, None, seen)
        made.pages = pages
        return made

    @cached_property
    def k(self) -> Tensor:
        return self.pages.gather(self.pages.k)

    @cached_property
    def v(self) -> Tensor:
        return self.pages.gather(self.pages.v)


def gathered(read: Tensor, rows: int, x: Tensor) -> Tensor:
    """(page, K, slot, D) -> (B, K, S, D): the slots of so many rows, whose pages in all heads are ``read`` (B * K * n,)."""
    return x.flatten(2).flatten(0, 1).index_select(0, read).view(rows, x.size(1), -1, x.size(3))
