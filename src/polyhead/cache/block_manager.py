"""Block manager of the paged cache: maps tokens of sequences to blocks of memory, without any tensors.

Memory is divided into blocks of ``block_size`` slots. Each sequence has a block table; token p is in slot p
mod block_size of entry p div block_size. A block is allocated for the first token that needs it, so only
slots of last blocks are wasted. Sequences may share blocks; a write to a shared block copies it first (Kwon
et al., 2023, sec. 4). A full block with registered token ids is found by them (prefix cache), also after its
sequence was released, until its memory is needed.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from polyhead.core.errors import UserError

BlockContent = tuple[int, tuple[int, ...]]
"""Content id of the preceding block (0: none) and the token ids: equal contents have equal prefixes."""


class OutOfBlocksError(UserError):
    """A step needs more blocks than are available. The state is unchanged."""


class WriteSpan(NamedTuple):
    """Positions that a step writes in a sequence: ``start`` to ``end`` - 1."""

    seq: int
    start: int
    end: int


class Allocation(NamedTuple):
    """Memory operations to do before a step writes."""

    copies: list[tuple[int, int]]  # (source, target), to be done first
    new_blocks: list[int]  # with arbitrary content


class BlockStats(NamedTuple):
    """Numbers of blocks and slots at one moment."""

    block_size: int  # slots per block
    n_blocks: int  # all blocks
    used_blocks: int  # in the table of a sequence
    cached_blocks: int  # in no table, but in the prefix cache
    shared_blocks: int  # in the tables of several sequences
    unshared_blocks: int  # blocks that the sequences would use without sharing
    n_tokens: int  # slots with a token; a shared one is counted once
    wasted_slots: int  # empty slots of used blocks
    peak_blocks: int  # maximum of used_blocks so far


class BlockManager:
    """Allocates, shares and frees the blocks of sequences; a sequence id is any int.

    Incorrect use raises AssertionError with the sequence or block.
    """

    def __init__(self, block_size: int, n_blocks: int = 0) -> None:
        assert block_size >= 1 and n_blocks >= 0, (block_size, n_blocks)
        self.block_size, self.peak_blocks = block_size, 0
        self.version = 0  # incremented whenever a block table changes
        self.block_tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}  # number of tokens of each sequence
        # content ids of the first blocks of each sequence, as far as registered by insert_prefix
        self._prefix_ids: dict[int, list[int]] = {}
        self._ref_counts: list[int] = []  # number of tables that contain each block
        self._free_blocks: list[int] = []  # a heap: low numbers first, so that used blocks are close together
        # blocks of the prefix cache in no table, least recently used first
        self._cached_blocks: OrderedDict[int, None] = OrderedDict()
        # content -> block; on a hash collision the dict compares the token ids
        self._content_to_block: dict[BlockContent, int] = {}
        # block -> (content id, content); a content id is never reused
        self._block_to_content: dict[int, tuple[int, BlockContent]] = {}
        self._content_ids = count(1)
        self.grow(n_blocks)

    @property
    def n_blocks(self) -> int:
        """Number of all blocks."""
        return len(self._ref_counts)

    @property
    def n_available(self) -> int:
        """Number of blocks in no table: free ones and those of the prefix cache."""
        return len(self._free_blocks) + len(self._cached_blocks)

    @property
    def n_free(self) -> int:
        """Number of available blocks that are not in the prefix cache."""
        return len(self._free_blocks)

    def grow(self, n: int) -> None:
        """Add n blocks."""
        assert n >= 0, f"{n} more blocks"
        for block in range(self.n_blocks, self.n_blocks + n):
            heapq.heappush(self._free_blocks, block)
        self._ref_counts += [0] * n

    def admit(self, seq: int, tokens: Sequence[int] = ()) -> int:
        """Add a sequence, or fill an empty one: match its token prefix, and return its number of tokens."""
        assert not self.lengths.get(seq), f"sequence {seq} already exists"
        table: list[int] = []
        chain: list[int] = []
        for i in range(len(tokens) // self.block_size):
            block = self._content_to_block.get(self._block_content(chain, tokens, i))
            if block is None:
                break
            table.append(block)
            chain.append(self._block_to_content[block][0])
        self._add_seq(seq, table, len(table) * self.block_size, chain)
        return self.lengths[seq]

    def fork(self, src: int, dst: int) -> None:
        """Add a sequence ``dst`` that shares all blocks of ``src``."""
        assert src in self.block_tables, f"no sequence {src} to fork"
        assert dst not in self.block_tables, f"sequence {dst} already exists"
        self._add_seq(dst, list(self.block_tables[src]), self.lengths[src], list(self._prefix_ids[src]))

    def blocks_needed(self, spans: Iterable[WriteSpan]) -> int:
        """Number of blocks that ``allocate`` of these spans takes."""
        n_new, writers, ref_counts, block_size = 0, Counter[int](), self._ref_counts, self.block_size
        for seq, first, end in spans:
            assert seq in self.block_tables, f"no sequence {seq} to write to"
            assert 0 <= first <= end, f"positions {first} to {end} of sequence {seq}"
            assert first <= self.lengths[seq], (
                f"sequence {seq} has {self.lengths[seq]} tokens, position {first} would leave a gap"
            )
            table = self.block_tables[seq]
            n_new += max(0, self._num_blocks(end) - len(table))
            if first < end:
                for block in table[first // block_size : self._num_blocks(end)]:
                    if ref_counts[block] > 1:
                        writers[block] += 1
        # the last sequence with a reference to a block keeps it without a copy
        return n_new + sum(min(n, ref_counts[block] - 1) for block, n in writers.items())

    def allocate(self, spans: Sequence[WriteSpan], n_needed: int | None = None) -> Allocation:
        """Allocate blocks for these spans and unshare the blocks they write to.

        Raises OutOfBlocksError, and changes nothing, if too few blocks are available. ``n_needed`` is the
        result of ``blocks_needed``, if already computed.
        """
        n_needed = self.blocks_needed(spans) if n_needed is None else n_needed
        assert len({span.seq for span in spans}) == len(spans), "a sequence occurs twice in one step"
        if n_needed > self.n_available:
            raise OutOfBlocksError(
                f"the step needs {n_needed} more blocks of {self.block_size} tokens; "
                f"{self.n_available} of {self.n_blocks} are free"
            )
        allocation = Allocation([], [])
        for seq, first, end in spans:
            if first == end:
                continue
            table, chain = self.block_tables[seq], self._prefix_ids[seq]
            # of each block that is written: take a new one, copy one that others read, or keep its own
            for i in range(first // self.block_size, self._num_blocks(end)):
                if i == len(table):
                    table.append(self._allocate_block())
                    allocation.new_blocks.append(table[i])
                elif self._ref_counts[table[i]] > 1:
                    old_block, table[i] = table[i], self._allocate_block()
                    allocation.copies.append((old_block, table[i]))
                    self._release_block(old_block)
                elif table[i] in self._block_to_content:
                    self._uncache_block(table[i])  # its content changes, and must not be found any more
            if len(chain) * self.block_size > first:
                del chain[first // self.block_size :]
            self.lengths[seq] = max(self.lengths[seq], end)
        self.version += bool(n_needed)
        return allocation

    def insert_prefix(self, seq: int, tokens: Sequence[int]) -> None:
        """Register the token ids of a sequence's prefix, so that ``admit`` finds its full blocks.

        The content of a block must depend only on the tokens up to its end, and must have been written.
        """
        assert seq in self.block_tables, f"no sequence {seq} to publish"
        table, chain = self.block_tables[seq], self._prefix_ids[seq]
        for i in range(len(chain), min(len(tokens), self.lengths[seq]) // self.block_size):
            content = self._block_content(chain, tokens, i)
            if content not in self._content_to_block:
                # registered after another chain of content ids for the same tokens: the cached chain counts
                if table[i] in self._block_to_content:
                    assert self._block_to_content[table[i]][1][1] == content[1], (
                        f"block {table[i]} holds other tokens than expected"
                    )
                    self._uncache_block(table[i])
                self._content_to_block[content] = table[i]
                self._block_to_content[table[i]] = next(self._content_ids), content
            chain.append(self._block_to_content[self._content_to_block[content]][0])

    def release(self, seq: int) -> None:
        """Remove a sequence; its blocks become free, or stay in the prefix cache until they are evicted."""
        assert seq in self.block_tables, f"no sequence {seq} to release"
        # released from the end, so that the prefix, which other sequences may share, is evicted last
        for block in reversed(self.block_tables.pop(seq)):
            self._release_block(block)
        del self.lengths[seq], self._prefix_ids[seq]
        self.version += 1

    def block_stats(self) -> BlockStats:
        """Count blocks and slots from the tables."""
        tokens: dict[int, int] = {}
        for seq, table in self.block_tables.items():
            for i, block in enumerate(table):
                tokens[block] = max(
                    tokens.get(block, 0), min(self.block_size, self.lengths[seq] - i * self.block_size)
                )
        used_blocks, n_tokens = len(tokens), sum(tokens.values())
        shared, unshared = sum(n > 1 for n in self._ref_counts), sum(map(len, self.block_tables.values()))
        wasted_slots = used_blocks * self.block_size - n_tokens
        return BlockStats(
            self.block_size,
            self.n_blocks,
            used_blocks,
            len(self._cached_blocks),
            shared,
            unshared,
            n_tokens,
            wasted_slots,
            self.peak_blocks,
        )

    def _add_seq(self, seq: int, table: list[int], length: int, prefix_ids: list[int]) -> None:
        for block in table:
            self._acquire_block(block)
        self.block_tables[seq], self.lengths[seq], self._prefix_ids[seq] = table, length, prefix_ids
        self.version += 1

    def _num_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _block_content(self, prefix_ids: Sequence[int], tokens: Sequence[int], i: int) -> BlockContent:
        return (prefix_ids[-1] if prefix_ids else 0), tuple(
            tokens[i * self.block_size : (i + 1) * self.block_size]
        )

    def _allocate_block(self) -> int:
        """Take a free or cached block and set its reference count to 1."""
        block = heapq.heappop(self._free_blocks) if self._free_blocks else self._evict_block()
        self._acquire_block(block)
        return block

    def _evict_block(self) -> int:
        block, _ = self._cached_blocks.popitem(last=False)
        self._uncache_block(block)
        return block

    def _acquire_block(self, block: int) -> None:
        self._ref_counts[block] += 1
        self._cached_blocks.pop(block, None)
        self.peak_blocks = max(self.peak_blocks, self.n_blocks - self.n_available)

    def _release_block(self, block: int) -> None:
        assert self._ref_counts[block] > 0, f"block {block} is already free"
        self._ref_counts[block] -= 1
        if not self._ref_counts[block]:
            if block in self._block_to_content:
                self._cached_blocks[block] = None
            else:
                heapq.heappush(self._free_blocks, block)

    def _uncache_block(self, block: int) -> None:
        """Remove a block from the prefix cache, because its content is about to change."""
        _, content = self._block_to_content.pop(block)
        del self._content_to_block[content]
