"""A page table of ints, beside a shadow that remembers which tokens every slot of memory holds."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from polyhead.cache.block_manager import BlockManager, OutOfBlocksError, WriteSpan
from polyhead.core.errors import UserError

A, B = 0, 2**61 - 1  # two token ids that Python gives the same hash
# hypothesis ends a third of the steps early, now more, now fewer: over 100,000 remain
EXAMPLES, STEPS = 1800, 100


class Shadow:
    """Memory as a program would use it: a slot holds a number that stands for the tokens up to and with its
    own.
    """

    def __init__(self, block: int, blocks: int) -> None:
        self.table = BlockManager(block, blocks)
        self.memory: dict[tuple[int, int], int] = {}
        self.pasts: dict[tuple[int, int], int] = {}  # (the past before, token) -> the past
        self.tokens: dict[int, list[int]] = {}  # all that a sequence has said or was told
        self.fed: dict[int, int] = {}  # how many of them stand in memory
        self.next = 0

    def past(self, before: int, token: int) -> int:
        return self.pasts.setdefault((before, token), len(self.pasts) + 1)

    def held(self, seq: int) -> list[int]:
        where, block = self.table.block_tables[seq], self.table.block_size
        return [self.memory[where[p // block], p % block] for p in range(self.table.lengths[seq])]

    def wanted(self, seq: int) -> list[int]:
        found, before = [], 0
        for token in self.tokens[seq][: self.fed[seq]]:
            before = self.past(before, token)
            found.append(before)
        return found

    def admit(self, prompt: list[int], seq: int | None = None) -> int:
        if seq is None:
            seq, self.next = self.next, self.next + 1
        self.tokens[seq] = list(prompt)
        self.fed[seq] = self.table.admit(seq, prompt[:-1])
        assert self.fed[seq] <= max(0, len(prompt) - 1)
        return seq

    def step(self, counts: dict[int, int]) -> bool:
        """Write the next tokens of some sequences; False where there was no room, and then nothing has
        changed.
        """
        spans = [WriteSpan(seq, self.fed[seq], self.fed[seq] + n) for seq, n in counts.items()]
        return self.write(spans)

    def write(self, spans: list[WriteSpan]) -> bool:
        table, block, before = self.table, self.table.block_size, self.state()
        wanted, room = table.blocks_needed(spans), table.n_available
        try:
            granted = table.allocate(spans)
        except OutOfBlocksError:
            assert wanted > room
            assert self.state() == before
            return False
        assert room - table.n_available == wanted == len(granted.copies) + len(granted.new_blocks)
        for src, dst in granted.copies:
            for slot in range(block):
                self.memory[dst, slot] = self.memory.get((src, slot), -1)
        for fresh in granted.new_blocks:
            for slot in range(block):
                self.memory[fresh, slot] = -1
        for seq, first, end in spans:
            self.fed[seq] = max(self.fed[seq], end)
            for p, past in list(enumerate(self.wanted(seq)))[first:end]:
                self.memory[table.block_tables[seq][p // block], p % block] = past
        return True

    def state(self) -> tuple[object, ...]:
        t = self.table
        tables = {seq: list(table) for seq, table in t.block_tables.items()}
        return (
            tables,
            dict(t.lengths),
            t.n_available,
            t.n_blocks,
            list(t._cached_blocks),
            dict(t._content_to_block),
            list(t._ref_counts),
        )

    def release(self, seq: int) -> None:
        self.table.release(seq)
        del self.tokens[seq], self.fed[seq]

    def check(self) -> None:
        self.table.check_invariants()
        for seq in self.tokens:
            assert self.held(seq) == self.wanted(seq)


pick = st.integers(0, 100)
token = st.sampled_from([A, B, 1])
prompts = st.lists(token, min_size=1, max_size=9)


class Machine(RuleBasedStateMachine):
    """All that a server does to the memory, in any order."""

    steps = 0

    @initialize(block=st.integers(1, 4), blocks=st.integers(1, 14))
    def begin(self, block: int, blocks: int) -> None:
        self.shadow = Shadow(block, blocks)

    def seq(self, i: int) -> int:
        return sorted(self.shadow.tokens)[i % len(self.shadow.tokens)]

    def some(self) -> bool:
        return bool(self.shadow.tokens)

    @precondition(lambda self: len(self.shadow.tokens) < 5)
    @rule(prompt=prompts)
    def admit(self, prompt: list[int]) -> None:
        self.shadow.admit(prompt)

    @precondition(some)
    @rule(i=pick, n=st.integers(1, 6))
    def chunk(self, i: int, n: int) -> None:
        """Feed a part of what was told and is not read yet."""
        seq = self.seq(i)
        self.shadow.step({seq: min(n, len(self.shadow.tokens[seq]) - self.shadow.fed[seq])})

    @precondition(some)
    @rule(said=st.lists(token, min_size=5, max_size=5))
    def decode(self, said: list[int]) -> None:
        """Every sequence takes one token, its own or the next of its prompt, in one step."""
        s, added = self.shadow, []
        for seq, new in zip(sorted(s.tokens), said, strict=False):
            if s.fed[seq] == len(s.tokens[seq]):
                s.tokens[seq].append(new)
                added.append(seq)
        if not s.step(dict.fromkeys(s.tokens, 1)):
            for seq in added:
                s.tokens[seq].pop()

    @precondition(lambda self: 0 < len(self.shadow.tokens) < 5)
    @rule(i=pick)
    def fork(self, i: int) -> None:
        s, src = self.shadow, self.seq(i)
        s.table.fork(src, s.next)
        s.tokens[s.next], s.fed[s.next], s.next = list(s.tokens[src]), s.fed[src], s.next + 1

    @precondition(some)
    @rule(i=pick, at=pick, said=st.lists(token, min_size=1, max_size=4))
    def rewrite(self, i: int, at: int, said: list[int]) -> None:
        """Other tokens in place of those from some position on, as after a wrong guess."""
        s, seq = self.shadow, self.seq(i)
        at %= s.fed[seq] + 1
        before, after, fed = s.tokens[seq], s.tokens[seq][:at] + said, s.fed[seq]
        s.tokens[seq] = after
        if s.write([WriteSpan(seq, at, len(after))]):
            s.fed[seq] = len(after)
            s.table.truncate(seq, len(after))
        else:
            s.tokens[seq], s.fed[seq] = before, fed

    @precondition(some)
    @rule(i=pick, to=pick)
    def truncate(self, i: int, to: int) -> None:
        s, seq = self.shadow, self.seq(i)
        s.fed[seq] = to % (s.fed[seq] + 1)
        s.table.truncate(seq, s.fed[seq])

    @precondition(some)
    @rule(i=pick)
    def publish(self, i: int) -> None:
        seq = self.seq(i)
        self.shadow.table.insert_prefix(seq, self.shadow.tokens[seq])

    @precondition(some)
    @rule(i=pick)
    def preempt(self, i: int) -> None:
        """Give up the memory of a sequence and have it read again, but for what is still there."""
        seq = self.seq(i)
        tokens = self.shadow.tokens[seq]
        self.shadow.release(seq)
        self.shadow.admit(tokens, seq)

    @precondition(some)
    @rule(i=pick, told=st.booleans())
    def free(self, i: int, told: bool) -> None:
        """The end of a request, or its being called off: at any phase."""
        seq = self.seq(i)
        if told:
            self.shadow.table.insert_prefix(seq, self.shadow.tokens[seq])
        self.shadow.release(seq)

    @precondition(lambda self: self.shadow.table.n_blocks < 20)
    @rule(more=st.integers(0, 3))
    def grow(self, more: int) -> None:
        self.shadow.table.grow(more)

    @invariant()
    def holds(self) -> None:
        Machine.steps += 1
        self.shadow.check()

    def teardown(self) -> None:
        if hasattr(self, "shadow"):
            for seq in list(self.shadow.tokens):
                self.shadow.release(seq)
            assert self.shadow.table.n_available == self.shadow.table.n_blocks
            self.shadow.table.check_invariants()


Machine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.acceptance("D1", "D2", "D4", "D7", "R7")
@pytest.mark.timeout(1200)
class TestAnyHistory(Machine.TestCase):
    """No history of 100,000 steps lets a slot hold what its sequence did not write."""

    @classmethod
    def tearDownClass(cls) -> None:
        assert Machine.steps >= 100_000


@pytest.mark.acceptance("D7", "R9")
@pytest.mark.parametrize("told", [False, True])
def test_all_blocks_are_free_after_5_000_requests_of_which_half_are_called_off(told):
    """A small pool, so that requests are put back too; a request ends after its tokens, or at a random
    moment.
    """
    rng = random.Random(told)
    shadow, limits, off = Shadow(4, 20), {}, {}
    begun = ended = called_off = back = 0
    while begun < 5_000 or limits:
        while begun < 5_000 and len(limits) < 8 and rng.random() < 0.8:
            seq = shadow.admit([rng.choice([A, B, 1]) for _ in range(rng.randint(1, 12))])
            limits[seq] = len(shadow.tokens[seq]) + rng.randint(1, 12)
            if begun % 2:
                off[seq] = rng.randint(0, 8)
            begun += 1
        for seq in [seq for seq in limits if seq in off]:
            off[seq] -= 1
            if off[seq] < 0 or shadow.fed[seq] == limits[seq]:
                shadow.release(seq)
                del limits[seq], off[seq]
                called_off += 1
        counts = {}
        for seq in limits:
            if shadow.fed[seq] == len(shadow.tokens[seq]):
                shadow.tokens[seq].append(rng.choice([A, B, 1]))
            counts[seq] = rng.randint(1, len(shadow.tokens[seq]) - shadow.fed[seq])
        while not shadow.step(counts):
            newest = max(counts)
            tokens = shadow.tokens[newest]
            shadow.release(newest)
            shadow.admit(tokens, newest)
            del counts[newest]
            back += 1
        if told:
            for seq in limits:
                shadow.table.insert_prefix(seq, shadow.tokens[seq])
        if begun % 50 == 0:
            shadow.check()
        for seq in [seq for seq in limits if shadow.fed[seq] >= limits[seq] and seq not in off]:
            shadow.release(seq)
            del limits[seq]
            ended += 1
    assert (begun, ended, called_off) == (5_000, 2_500, 2_500)
    assert back > 50, "the pool was never full"
    assert shadow.table.n_available == shadow.table.n_blocks == 20
    assert shadow.table.block_stats() == (
        4,
        20,
        0,
        shadow.table.block_stats().cached_blocks,
        0,
        0,
        0,
        0,
        shadow.table.peak_blocks,
    )
    assert bool(shadow.table.block_stats().cached_blocks) == told
    shadow.table.check_invariants()


def filled(block, blocks, *rows):
    """A table of the sequences 0, 1, ... whose tokens were written and told."""
    table = BlockManager(block, blocks)
    for seq, tokens in enumerate(rows):
        held = table.admit(seq, tokens)
        table.allocate([WriteSpan(seq, held, len(tokens))])
        table.insert_prefix(seq, tokens)
    return table


def test_equal_beginnings_are_held_once_and_only_whole_blocks_of_them():
    table = filled(3, 10, [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 4, 9, 6])
    a, b, c = (table.block_tables[seq] for seq in range(3))
    assert a[:2] == b[:2]
    assert a[:1] == c[:1]
    assert len({*a, *b, *c}) == 2 + 1 + 1 + 1
    assert table.block_stats() == (3, 10, 5, 0, 2, 8, 11, 4, 5)


@pytest.mark.acceptance("D4")
def test_contents_of_one_hash_are_told_apart():
    assert hash((0, (A, 5))) == hash((0, (B, 5)))
    table = filled(2, 10, [A, 5], [B, 5])
    assert table.block_tables[0] != table.block_tables[1]
    assert table.admit(2, [B, 5]) == 2
    assert table.block_tables[2] == table.block_tables[1]


@pytest.mark.acceptance("D4")
def test_a_block_is_found_only_after_the_past_it_was_written_after():
    table = filled(2, 10, [1, 1, 7, 7], [2, 2])
    assert table.admit(2, [2, 2, 7, 7]) == 2
    assert table.admit(3, [7, 7]) == 0


@pytest.mark.acceptance("D4")
def test_the_past_of_a_block_is_no_number_that_is_used_again():
    """A first block is evicted, and its memory and place are taken by others: its second block must not be
    found.
    """
    table = filled(1, 2, [1, 2])
    table.release(0)
    first, second = table._content_to_block[0, (1,)], table.admit(1, [1, 2])
    assert second == 2
    table.truncate(1, 1)  # block 2 is kept, and oldest; now the first one alone is rewritten
    table.allocate([WriteSpan(1, 0, 1)])
    table.insert_prefix(1, [9])
    assert table.block_tables[1] == [first]
    assert table.admit(2, [9, 2]) == 1


def test_what_nobody_holds_is_kept_until_its_memory_is_needed_longest_unused_first():
    table = filled(2, 4, [1, 1, 2, 2], [3, 3])
    table.release(1)
    table.release(0)
    assert table.block_stats().cached_blocks == 3
    assert table.admit(2, [3, 3]) == 2  # used again: now the youngest
    table.release(2)
    table.admit(3)
    # the free block, and the oldest: the end of sequence 0, for its beginning is kept longer
    table.allocate([WriteSpan(3, 0, 4)])
    assert table.admit(4, [1, 1, 2, 2]) == 2
    assert table.admit(5, [3, 3]) == 2
    table.check_invariants()


def test_copies_come_only_where_a_shared_block_is_written_and_the_last_owner_keeps_it():
    table = filled(4, 10, [1, 2, 3, 4, 5])
    whole, last = table.block_tables[0]
    for seq in (1, 2):
        table.fork(0, seq)
    spans = [WriteSpan(seq, 5, 6) for seq in range(3)]
    assert table.blocks_needed(spans) == 2
    granted = table.allocate(spans)
    assert [src for src, _ in granted.copies] == [last, last]
    assert granted.new_blocks == []
    assert [table.block_tables[seq][0] for seq in range(3)] == [whole] * 3
    assert len({table.block_tables[seq][1] for seq in range(3)}) == 3
    assert table.block_tables[2][1] == last
    assert table.block_stats().shared_blocks == 1
    assert table.allocate([WriteSpan(0, 6, 9)]) == ([], [table.block_tables[0][2]])


def test_a_step_that_does_not_fit_says_what_it_needs_and_does_nothing():
    table = filled(2, 3, [1, 2, 3])
    table.fork(0, 1)
    before = {seq: list(blocks) for seq, blocks in table.block_tables.items()}
    with pytest.raises(OutOfBlocksError, match="needs 2 more blocks of 2 tokens; 1 of 3 are free"):
        table.allocate([WriteSpan(1, 3, 5)])
    assert (table.block_tables, table.lengths) == (before, {0: 3, 1: 3})
    table.allocate([WriteSpan(1, 3, 4)])
    table.check_invariants()
    assert issubclass(OutOfBlocksError, UserError)


def test_usage_equals_what_is_counted_by_hand():
    """Block 4: lengths 5, 9 and a copy of the second: blocks of 5: [4, 1], of 9: [4, 4, 1]."""
    table = BlockManager(4, 20)
    for seq, length in ((0, 5), (1, 9)):
        table.admit(seq)
        table.allocate([WriteSpan(seq, 0, length)])
    table.fork(1, 2)
    assert table.block_stats() == (4, 20, 5, 0, 3, 8, 14, 6, 5)
    table.allocate([WriteSpan(2, 9, 11)])
    assert table.block_stats() == (4, 20, 6, 0, 2, 8, 17, 7, 6)
    table.release(1)
    assert table.block_stats() == (4, 20, 5, 0, 0, 5, 16, 4, 6)


@pytest.mark.acceptance("D2")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda t: t.admit(0), "sequence 0 already exists"),
        (lambda t: t.fork(7, 8), "no sequence 7 to fork"),
        (lambda t: t.fork(0, 1), "sequence 1 already exists"),
        (lambda t: t.allocate([WriteSpan(7, 0, 1)]), "no sequence 7 to write to"),
        (lambda t: t.allocate([WriteSpan(0, 5, 6)]), "has 4 tokens, position 5 would leave a gap"),
        (lambda t: t.allocate([WriteSpan(0, 3, 2)]), "positions 3 to 2"),
        (lambda t: t.allocate([WriteSpan(0, -1, 2)]), "positions -1 to 2"),
        (lambda t: t.allocate([WriteSpan(0, 4, 5), WriteSpan(0, 5, 6)]), "would leave a gap|comes twice"),
        (lambda t: t.allocate([WriteSpan(0, 4, 5), WriteSpan(0, 4, 5)]), "occurs twice"),
        (lambda t: t.truncate(0, 5), "holds 4 tokens, not 5"),
        (lambda t: t.truncate(7, 0), "no sequence 7"),
        (lambda t: t.release(7), "no sequence 7"),
        (lambda t: (t.release(0), t.release(0)), "no sequence 0"),
        (lambda t: t.insert_prefix(7, []), "no sequence 7"),
        (
            lambda t: (t.fork(0, 3), t.truncate(3, 0), t._release_block(t.block_tables[0][0]), t.release(0)),
            "is already free",
        ),
        (
            lambda t: (t._free_blocks.append(t.block_tables[0][0]), t.check_invariants()),
            "lost, or both free and allocated",
        ),
        (
            lambda t: (t._free_blocks.append(t._free_blocks[0]), t.check_invariants()),
            "in the free list twice",
        ),
        (
            lambda t: (t.block_tables[1].append(t.block_tables[0][0]), t.check_invariants()),
            "reference count is wrong",
        ),
        (lambda t: t.grow(-1), "-1 more"),
    ],
)
def test_wrong_use_is_named(wrong, says):
    table = filled(2, 10, [1, 2, 3, 4], [5])
    with pytest.raises(AssertionError, match=says):
        wrong(table)


def test_telling_a_forks_block_other_tokens_is_named():
    table = BlockManager(2, 4)
    table.admit(0)
    table.allocate([WriteSpan(0, 0, 2)])
    table.fork(0, 1)
    table.insert_prefix(0, [1, 2])
    with pytest.raises(AssertionError, match="holds other tokens than expected"):
        table.insert_prefix(1, [1, 3])


@pytest.mark.parametrize(("block", "blocks"), [(0, 4), (4, -1)])
def test_blocks_of_no_size_are_refused(block, blocks):
    with pytest.raises(UserError, match="expected at least 1 token"):
        BlockManager(block, blocks)


def test_blocks_with_low_numbers_are_taken_first():
    table = BlockManager(1, 6)
    for seq, tokens in ((0, 5), (1, 0)):
        table.admit(seq)
        table.allocate([WriteSpan(seq, 0, tokens)])
    held = table.block_tables[0][1:3]
    table.truncate(0, 1)
    table.allocate([WriteSpan(1, 0, 2)])
    assert table.block_tables[1] == sorted(held)
    assert Counter(table._ref_counts) == {1: 3, 0: 3}
