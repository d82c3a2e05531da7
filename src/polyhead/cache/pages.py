"""Which block of memory holds which tokens of which sequence: numbers only, no tensor.

Memory is cut into blocks of equally many slots. A sequence has a table of blocks, token p stands in slot p mod block of
entry p div block, and a block is taken when the first token needs it: only slots of last blocks are ever wasted.
Sequences may share blocks; who writes into a shared one gets a copy first (Kwon et al., 2023, sec. 4). A full block whose
token ids were told can be found again by them, also when its sequence is gone, until its memory is needed.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from polyhead.errors import UserError

Content = tuple[int, tuple[int, ...]]
"""The name of the block before, 0 if there is none, and the token ids: equal contents have equal pasts."""


class NoRoom(UserError):
    """A step needs more blocks than there are. Nothing was changed."""


class Span(NamedTuple):
    """What a step writes of a sequence: positions ``first`` to ``end`` - 1."""

    seq: int
    first: int
    end: int


class Granted(NamedTuple):
    """What must be done with the memory before a step writes: copies first, then ``fresh`` holds whatever was there."""

    copies: list[tuple[int, int]]  # (from, to)
    fresh: list[int]


class Usage(NamedTuple):
    """Blocks, and slots in them, at one moment."""

    block: int  # slots of a block
    blocks: int  # all that there are
    used: int  # held by a sequence
    kept: int  # held by none, but known by their tokens
    shared: int  # held by more than one sequence
    unshared: int  # that the same sequences would hold if none were shared
    tokens: int  # slots in which a token stands, a shared one counted once
    wasted: int  # slots of held blocks in which none stands
    peak: int  # the most that were ever held at once


class PageTable:
    """The blocks of all sequences; a sequence is any number. Wrong use is an AssertionError that names it."""

    def __init__(self, block: int, blocks: int = 0) -> None:
        if block < 1 or blocks < 0:
            raise UserError(
                f"blocks of {block} tokens and {blocks} of them; wanted at least 1 token, and not less than 0"
            )
        self.block, self.peak = block, 0
        self.changes = 0  # goes up whenever a table of blocks becomes another one
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}  # one past the last token of each sequence
        self._chains: dict[int, list[int]] = {}  # names of the first blocks of each sequence, as far as told
        self._owners: list[int] = []  # how many tables hold each block
        self._free: list[int] = []  # a heap: low numbers first, so that what is used lies together
        self._kept: OrderedDict[int, None] = OrderedDict()  # without owner, but known: longest unused first
        self._found: dict[Content, int] = {}  # content -> block; a dict compares the ids where hashes agree
        self._named: dict[int, tuple[int, Content]] = {}  # block -> its name, never given twice, and content
        self._names = count(1)
        self.grow(blocks)

    @property
    def blocks(self) -> int:
        """All blocks there are."""
        return len(self._owners)

    @property
    def available(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free) + len(self._kept)

    @property
    def free(self) -> int:
        """Those of them whose content nobody knows."""
        return len(self._free)

    def grow(self, more: int) -> None:
        """So many new blocks."""
        assert more >= 0, f"{more} more blocks"
        for block in range(self.blocks, self.blocks + more):
            heapq.heappush(self._free, block)
        self._owners += [0] * more

    def admit(self, seq: int, tokens: Sequence[int] = ()) -> int:
        """A new sequence; comes back how many of its first tokens are held already, whole blocks of them."""
        assert seq not in self.tables, f"sequence {seq} is here already"
        table: list[int] = []
        chain: list[int] = []
        for i in range(len(tokens) // self.block):
            found = self._found.get(self._content(chain, tokens, i))
            if found is None:
                break
            table.append(found)
            chain.append(self._named[found][0])
        self._enter(seq, table, len(table) * self.block, chain)
        return self.lengths[seq]

    def fork(self, src: int, dst: int) -> None:
        """A new sequence ``dst`` that shares all blocks of ``src``."""
        assert src in self.tables, f"no sequence {src} to fork"
        assert dst not in self.tables, f"sequence {dst} is here already"
        self._enter(dst, list(self.tables[src]), self.lengths[src], list(self._chains[src]))

    def wanted(self, spans: Iterable[Span]) -> int:
        """How many blocks ``write`` of the same would take."""
        new, writers, owners, size = 0, Counter[int](), self._owners, self.block
        for seq, first, end in spans:
            assert seq in self.tables, f"no sequence {seq} to write to"
            assert 0 <= first <= end, f"positions {first} to {end} of sequence {seq}"
            assert first <= self.lengths[seq], (
                f"sequence {seq} holds {self.lengths[seq]} tokens, position {first} would leave a gap"
            )
            table = self.tables[seq]
            new += max(0, self._count(end) - len(table))
            if first < end:
                for block in table[first // size : self._count(end)]:
                    if owners[block] > 1:
                        writers[block] += 1
        # who is left alone with a block keeps it
        return new + sum(min(n, owners[block] - 1) for block, n in writers.items())

    def write(self, spans: Sequence[Span], wanted: int | None = None) -> Granted:
        """Make the blocks that hold these positions the sequences' own; NoRoom, and nothing done, if they do not suffice.

        ``wanted`` is what they take, if that was asked already.
        """
        wanted = self.wanted(spans) if wanted is None else wanted
        assert len({span.seq for span in spans}) == len(spans), "a sequence comes twice in one step"
        if wanted > self.available:
            raise NoRoom(
                f"the step needs {wanted} blocks of {self.block} tokens more, {self.available} of {self.blocks} are free"
            )
        granted = Granted([], [])
        for seq, first, end in spans:
            if first == end:
                continue
            table, chain = self.tables[seq], self._chains[seq]
            for i in range(first // self.block, self._count(end)):
                if i == len(table):
                    table.append(self._take())
                    granted.fresh.append(table[i])
                elif self._owners[table[i]] > 1:
                    old, table[i] = table[i], self._take()
                    granted.copies.append((old, table[i]))
                    self._drop(old)
                elif table[i] in self._named:
                    self._forget(table[i])
            if len(chain) * self.block > first:
                del chain[first // self.block :]
            self.lengths[seq] = max(self.lengths[seq], end)
        self.changes += bool(wanted)
        return granted

    def publish(self, seq: int, tokens: Sequence[int]) -> None:
        """Tell the ids of a sequence's first tokens, so that its full blocks are found by them.

        What a block holds must depend on the tokens up to its end alone, and must have been written.
        """
        assert seq in self.tables, f"no sequence {seq} to publish"
        table, chain = self.tables[seq], self._chains[seq]
        for i in range(len(chain), min(len(tokens), self.lengths[seq]) // self.block):
            content = self._content(chain, tokens, i)
            if content not in self._found:
                # another way to say the same past: the way that is still known counts
                if table[i] in self._named:
                    assert self._named[table[i]][1][1] == content[1], (
                        f"block {table[i]} holds other tokens than were told"
                    )
                    self._forget(table[i])
                self._found[content] = table[i]
                self._named[table[i]] = next(self._names), content
            chain.append(self._named[self._found[content]][0])

    def truncate(self, seq: int, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        assert seq in self.tables, f"no sequence {seq} to truncate"
        assert 0 <= length <= self.lengths[seq], (
            f"sequence {seq} holds {self.lengths[seq]} tokens, not {length}"
        )
        table, kept = self.tables[seq], self._count(length)
        self.changes += kept < len(table)
        while len(table) > kept:
            self._drop(table.pop())
        del self._chains[seq][length // self.block :]
        self.lengths[seq] = length

    def release(self, seq: int) -> None:
        """The sequence is gone; its blocks are free, or kept as long as their memory is not needed."""
        assert seq in self.tables, f"no sequence {seq} to release"
        # from the end, so that the beginning, which others may have too, is kept longest
        self.truncate(seq, 0)
        del self.tables[seq], self.lengths[seq], self._chains[seq]

    def usage(self) -> Usage:
        """What is held, counted anew from the tables."""
        tokens: dict[int, int] = {}
        for seq, table in self.tables.items():
            for i, block in enumerate(table):
                tokens[block] = max(tokens.get(block, 0), min(self.block, self.lengths[seq] - i * self.block))
        held, stand = len(tokens), sum(tokens.values())
        shared, unshared = sum(n > 1 for n in self._owners), sum(map(len, self.tables.values()))
        wasted = held * self.block - stand
        return Usage(
            self.block, self.blocks, held, len(self._kept), shared, unshared, stand, wasted, self.peak
        )

    def check(self) -> None:
        """Assert all that must hold between two calls; linear in the number of blocks."""
        holders = Counter(block for table in self.tables.values() for block in table)
        assert all(holders[block] == n for block, n in enumerate(self._owners)), "a count of owners is wrong"
        assert sum(holders.values()) == sum(self._owners), "a table holds a block that is none"
        free, kept, held = set(self._free), set(self._kept), set(holders)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(kept) + len(held) == self.blocks, "a block is lost, or in two places"
        assert free | kept | held == set(range(self.blocks)), "a block is lost, or in two places"
        assert kept <= set(self._named) <= kept | held, "known blocks are held or kept, kept ones are known"
        assert {block: content for content, block in self._found.items()} == {
            block: content for block, (_, content) in self._named.items()
        }, "contents and blocks do not agree"
        assert self.tables.keys() == self.lengths.keys() == self._chains.keys(), "half a sequence"
        for seq, table in self.tables.items():
            assert len(table) == self._count(self.lengths[seq]), (
                f"sequence {seq}: blocks do not fit its length"
            )
            assert len(set(table)) == len(table), f"sequence {seq} holds a block twice"
            assert len(self._chains[seq]) <= self.lengths[seq] // self.block, (
                f"sequence {seq}: more names than full blocks"
            )
        assert len(held) <= self.peak, "more is held than ever was"

    def _enter(self, seq: int, table: list[int], length: int, chain: list[int]) -> None:
        for block in table:
            self._hold(block)
        self.tables[seq], self.lengths[seq], self._chains[seq] = table, length, chain
        self.changes += 1

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _content(self, chain: Sequence[int], tokens: Sequence[int], i: int) -> Content:
        return (chain[-1] if chain else 0), tuple(tokens[i * self.block : (i + 1) * self.block])

    def _take(self) -> int:
        """A block whose content does not matter, now held once."""
        block = heapq.heappop(self._free) if self._free else self._evict()
        self._hold(block)
        return block

    def _evict(self) -> int:
        block, _ = self._kept.popitem(last=False)
        self._forget(block)
        return block

    def _hold(self, block: int) -> None:
        self._owners[block] += 1
        self._kept.pop(block, None)
        self.peak = max(self.peak, self.blocks - self.available)

    def _drop(self, block: int) -> None:
        assert self._owners[block] > 0, f"block {block} is free already"
        self._owners[block] -= 1
        if not self._owners[block]:
            if block in self._named:
                self._kept[block] = None
            else:
                heapq.heappush(self._free, block)

    def _forget(self, block: int) -> None:
        """Its content is about to change: nobody finds it any more."""
        _, content = self._named.pop(block)
        del self._found[content]
