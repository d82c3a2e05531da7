"""What the cost model counts: the batch that is read, and the work that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyhead.registry import Choice


class Load(NamedTuple):
    """One batch: how many rows of how many tokens, padding counted."""

    rows: int
    length: int  # of what the decoder reads, or the encoder where it is alone
    source: int = 0  # of what the encoder of an encoder-decoder reads
    asked: int | None = None  # labels, for which the head gives scores; None: every token of length has one

    @property
    def labels(self) -> int:
        return self.rows * self.length if self.asked is None else self.asked

    @property
    def tokens(self) -> int:
        """The tokens of both sides."""
        return self.rows * (self.length + self.source)


class Work(NamedTuple):
    """Some of a forward pass: what it is, in how many layers, the operations of one, and by which formula.

    ``unseen`` are those of them that belong to pairs of tokens that a mask hides: the plain products compute them, a kernel
    that skips the blocks above the diagonal does not.
    """

    name: str
    times: int
    each: int
    formula: str
    unseen: int = 0

    @property
    def total(self) -> int:
        return self.times * self.each


class Reach(NamedTuple):
    """The tokens of one sub-layer: its rows, the queries of a row, and the slots that they look at."""

    rows: int
    queries: int
    slots: int
    fresh: int  # of the slots, those whose keys and values are made here; the others are remembered


class Unknown(Exception):
    """A part that this file has no formula for: one of the user's own."""


def merged(works: Iterator[Work]) -> list[Work]:
    """Those of the same name and size as one, so many times."""
    found: dict[tuple[str, int, int], Work] = {}
    for work in works:
        key = (work.name, work.each, work.unseen)
        found[key] = work._replace(times=found[key].times + 1) if key in found else work
    return list(found.values())


def known(table: dict[str, Any], choice: Choice) -> Any:
    """What a table says of a part."""
    if choice.name not in table:
        raise Unknown(f"{choice.name!r}")
    return table[choice.name]
