"""Slots of pages that stand empty, counted on a page table for rows of given lengths."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.cache.pages import PageTable, Span, Usage


def when_full(found: Sequence[int], block: int) -> float:
    """The share of empty slots where all rows are held at once, each with all its tokens."""
    pages = PageTable(block, sum(-(-n // block) for n in found))
    for row, n in enumerate(found):
        pages.admit(row)
        pages.write([Span(row, 0, n)])
    return empty(pages.usage())


def while_growing(found: Sequence[int], block: int, rows: int) -> float:
    """The share of empty slots over all steps, where each row grows by a token a step and the next one takes its place.

    So many rows are held at once; the first 20 times as many are looked at.
    """
    pages, waiting, held, total = PageTable(block), iter(enumerate(found[: 20 * rows])), 0, 0
    live: dict[int, int] = {}
    while True:
        for seq, n in waiting:
            pages.admit(seq)
            live[seq] = n
            if len(live) == rows:
                break
        if not live:
            return 1 - held / max(1, total)
        spans = [Span(seq, pages.lengths[seq], pages.lengths[seq] + 1) for seq in live]
        pages.grow(max(0, pages.wanted(spans) - pages.available))
        pages.write(spans)
        held, total = held + sum(pages.lengths.values()), total + block * sum(map(len, pages.tables.values()))
        for seq in [seq for seq, n in live.items() if pages.lengths[seq] == n]:
            pages.release(seq)
            del live[seq]


def empty(usage: Usage) -> float:
    """The share of slots of held pages in which no token stands."""
    return usage.wasted / max(1, usage.used * usage.block)
