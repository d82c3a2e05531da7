"""Empty slots of cache blocks, counted with a block manager for rows of given lengths."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.cache.block_manager import BlockManager, BlockStats, WriteSpan


def measure_full_waste(lengths: Sequence[int], block_size: int) -> float:
    """Share of empty slots if all rows are held at once, each with all its tokens."""
    pages = BlockManager(block_size, sum(-(-n // block_size) for n in lengths))
    for row, n in enumerate(lengths):
        pages.admit(row)
        pages.allocate([WriteSpan(row, 0, n)])
    return empty_share(pages.block_stats())


def measure_growing_waste(lengths: Sequence[int], block_size: int, rows: int) -> float:
    """Share of empty slots over all steps, where rows grow by a token per step.

    ``rows`` rows are held at once, and the next row replaces a complete one; the first 20 times as many are
    used.
    """
    pages, waiting, n_tokens, total = BlockManager(block_size), iter(enumerate(lengths[: 20 * rows])), 0, 0
    active: dict[int, int] = {}
    while True:
        for seq, n in waiting:
            pages.admit(seq)
            active[seq] = n
            if len(active) == rows:
                break
        if not active:
            return 1 - n_tokens / max(1, total)
        spans = [WriteSpan(seq, pages.lengths[seq], pages.lengths[seq] + 1) for seq in active]
        pages.grow(max(0, pages.blocks_needed(spans) - pages.n_available))
        pages.allocate(spans)
        n_tokens, total = (
            n_tokens + sum(pages.lengths.values()),
            total + block_size * sum(map(len, pages.block_tables.values())),
        )
        for seq in [seq for seq, n in active.items() if pages.lengths[seq] == n]:
            pages.release(seq)
            del active[seq]


def empty_share(usage: BlockStats) -> float:
    """Share of slots without a token in the used blocks."""
    return usage.wasted_slots / max(1, usage.used_blocks * usage.block_size)
