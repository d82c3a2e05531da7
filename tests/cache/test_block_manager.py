import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.cache.cache_helpers import check_invariants

from polyhead.cache.block_manager import BlockManager, OutOfBlocksError, WriteSpan

A, B = 0, 2**61 - 1  # two token ids with the same hash in Python
STEPS = 100


class Shadow:
    """A memory beside the table: each slot holds a number that stands for all tokens up to its own."""

    def __init__(self, block_size, n_blocks):
        self.table = BlockManager(block_size, n_blocks)
        self.memory = {}
        self.history_ids = {}  # (id of the history before, token) -> id
        self.tokens = {}  # all tokens of a sequence, prompt included
        self.n_written = {}
        self.next_seq = 0

    def stored_ids(self, seq):
        table, size = self.table.block_tables[seq], self.table.block_size
        return [self.memory[table[p // size], p % size] for p in range(self.table.lengths[seq])]

    def expected(self, seq):
        ids, previous = [], 0
        for token in self.tokens[seq][: self.n_written[seq]]:
            previous = self.history_ids.setdefault((previous, token), len(self.history_ids) + 1)
            ids.append(previous)
        return ids

    def admit(self, prompt, seq=None):
        if seq is None:
            seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.tokens[seq] = list(prompt)
        self.n_written[seq] = self.table.admit(seq, prompt[:-1])
        assert self.n_written[seq] <= max(0, len(prompt) - 1)
        return seq

    def step(self, counts):
        starts = self.n_written
        return self.write([WriteSpan(s, starts[s], starts[s] + n) for s, n in counts.items()])

    def write(self, spans):
        table, size, previous = self.table, self.table.block_size, self.state()
        n_needed, available = table.blocks_needed(spans), table.n_available
        try:
            allocation = table.allocate(spans)
        except OutOfBlocksError:
            assert n_needed > available and self.state() == previous
            return False
        n_allocated = len(allocation.copies) + len(allocation.new_blocks)
        assert available - table.n_available == n_needed == n_allocated
        for src, dst in allocation.copies:
            self.memory |= {(dst, slot): self.memory.get((src, slot), -1) for slot in range(size)}
        self.memory |= {(block, slot): -1 for block in allocation.new_blocks for slot in range(size)}
        for seq, first, end in spans:
            self.n_written[seq] = max(self.n_written[seq], end)
            assert table.lengths[seq] == self.n_written[seq]
            for p, history_id in list(enumerate(self.expected(seq)))[first:end]:
                self.memory[table.block_tables[seq][p // size], p % size] = history_id
        return True

    def state(self):
        t = self.table
        tables = {seq: list(table) for seq, table in t.block_tables.items()}
        cached = list(t._cached_blocks), dict(t._content_to_block), list(t._ref_counts)
        return tables, dict(t.lengths), t.n_available, t.n_blocks, *cached

    def release(self, seq):
        self.table.release(seq)
        del self.tokens[seq], self.n_written[seq]

    def check(self):
        check_invariants(self.table)
        for seq in self.tokens:
            assert self.stored_ids(seq) == self.expected(seq)


pick = st.integers(0, 100)
token = st.sampled_from([A, B, 1])
prompts = st.lists(token, min_size=1, max_size=9)


def has_sequences(machine):
    return bool(machine.shadow.tokens)


class Machine(RuleBasedStateMachine):
    steps = 0

    @initialize(block_size=st.integers(1, 4), n_blocks=st.integers(1, 14))
    def create(self, block_size, n_blocks):
        self.shadow = Shadow(block_size, n_blocks)

    def seq(self, i):
        return sorted(self.shadow.tokens)[i % len(self.shadow.tokens)]

    @precondition(lambda self: len(self.shadow.tokens) < 5)
    @rule(prompt=prompts)
    def admit(self, prompt):
        self.shadow.admit(prompt)

    @precondition(has_sequences)
    @rule(i=pick, n=st.integers(1, 6))
    def prefill(self, i, n):
        seq = self.seq(i)
        self.shadow.step({seq: min(n, len(self.shadow.tokens[seq]) - self.shadow.n_written[seq])})

    @precondition(has_sequences)
    @rule(tokens=st.lists(token, min_size=5, max_size=5))
    def decode(self, tokens):
        s, extended_seqs = self.shadow, []
        for seq, new in zip(sorted(s.tokens), tokens, strict=False):
            if s.n_written[seq] == len(s.tokens[seq]):
                s.tokens[seq].append(new)
                extended_seqs.append(seq)
        if not s.step(dict.fromkeys(s.tokens, 1)):
            for seq in extended_seqs:
                s.tokens[seq].pop()

    @precondition(lambda self: 0 < len(self.shadow.tokens) < 5)
    @rule(i=pick)
    def fork(self, i):
        s, src, dst = self.shadow, self.seq(i), self.shadow.next_seq
        s.table.fork(src, dst)
        s.tokens[dst], s.n_written[dst], s.next_seq = list(s.tokens[src]), s.n_written[src], dst + 1

    @precondition(has_sequences)
    @rule(i=pick, position=pick, tokens=st.lists(token, min_size=1, max_size=4))
    def rewrite(self, i, position, tokens):
        s, seq = self.shadow, self.seq(i)
        position %= s.n_written[seq] + 1
        previous, n_written = s.tokens[seq], s.n_written[seq]
        s.tokens[seq] = previous[:position] + tokens + previous[position + len(tokens) : n_written]
        if s.write([WriteSpan(seq, position, len(s.tokens[seq]))]):
            s.n_written[seq] = len(s.tokens[seq])
        else:
            s.tokens[seq], s.n_written[seq] = previous, n_written

    @precondition(has_sequences)
    @rule(i=pick)
    def insert_prefix(self, i):
        self.shadow.table.insert_prefix(self.seq(i), self.shadow.tokens[self.seq(i)])

    @precondition(has_sequences)
    @rule(i=pick)
    def preempt(self, i):
        seq = self.seq(i)
        tokens = self.shadow.tokens[seq]
        self.shadow.release(seq)
        self.shadow.admit(tokens, seq)

    @precondition(has_sequences)
    @rule(i=pick, insert=st.booleans())
    def release(self, i, insert):
        if insert:
            self.insert_prefix(i)
        self.shadow.release(self.seq(i))

    @precondition(lambda self: self.shadow.table.n_blocks < 20)
    @rule(more=st.integers(0, 3))
    def grow(self, more):
        self.shadow.table.grow(more)

    @invariant()
    def check(self):
        Machine.steps += 1
        self.shadow.check()

    def teardown(self):
        if hasattr(self, "shadow"):
            for seq in list(self.shadow.tokens):
                self.shadow.release(seq)
            assert self.shadow.table.n_available == self.shadow.table.n_blocks
            check_invariants(self.shadow.table)


Machine.TestCase.settings = settings(
    stateful_step_count=STEPS, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.acceptance("D1", "D2", "D4", "D7", "R7")
@pytest.mark.timeout(1200)
class TestAnyHistory(Machine.TestCase):
    @classmethod
    def tearDownClass(cls):
        assert Machine.steps >= settings.default.max_examples * STEPS // 2, "too few steps"


def fill_table(block_size, n_blocks, *rows):
    table = BlockManager(block_size, n_blocks)
    for seq, tokens in enumerate(rows):
        n_matched = table.admit(seq, tokens)
        table.allocate([WriteSpan(seq, n_matched, len(tokens))])
        table.insert_prefix(seq, tokens)
    return table


@pytest.mark.acceptance("D4")
def test_blocks_are_shared_and_copied_on_write():
    """Block 4: lengths 5, 9 and a copy of the second: blocks of 5: [4, 1], of 9: [4, 4, 1]."""
    table = fill_table(3, 10, [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 4, 9, 6])
    a, b, c = (table.block_tables[seq] for seq in range(3))
    assert a[:2] == b[:2] and a[:1] == c[:1]
    assert len({*a, *b, *c}) == 2 + 1 + 1 + 1 and table.block_stats() == (3, 10, 5, 0, 2, 8, 11, 4, 5)
    assert hash((0, (A, 5))) == hash((0, (B, 5)))
    table = fill_table(2, 10, [A, 5], [B, 5])
    assert table.block_tables[0] != table.block_tables[1] and table.admit(2, [B, 5]) == 2
    assert table.block_tables[2] == table.block_tables[1]
    table = fill_table(2, 10, [1, 1, 7, 7], [2, 2])
    assert table.admit(2, [2, 2, 7, 7]) == 2 and table.admit(3, [7, 7]) == 0
    table = fill_table(4, 10, [1, 2, 3, 4, 5])
    full, last = table.block_tables[0]
    for seq in (1, 2):
        table.fork(0, seq)
    spans = [WriteSpan(seq, 5, 6) for seq in range(3)]
    assert table.blocks_needed(spans) == 2
    allocation = table.allocate(spans)
    assert [src for src, _ in allocation.copies] == [last, last] and allocation.new_blocks == []
    assert [table.block_tables[seq][0] for seq in range(3)] == [full] * 3
    assert len({table.block_tables[seq][1] for seq in range(3)}) == 3
    assert table.block_tables[2][1] == last and table.block_stats().shared_blocks == 1
    assert table.allocate([WriteSpan(0, 6, 9)]) == ([], [table.block_tables[0][2]])
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


@pytest.mark.acceptance("D4")
def test_content_of_a_rewritten_prefix_is_new():
    """What follows an evicted or rewritten block must not match after what replaced it."""
    table = fill_table(1, 2, [1, 2])
    table.release(0)
    first, n_matched = table._content_to_block[0, (1,)], table.admit(1, [1, 2])
    assert n_matched == 2
    table.release(1)
    assert table.admit(1, [1]) == 1  # block 2 stays in the prefix cache; now the first one alone is rewritten
    table.allocate([WriteSpan(1, 0, 1)])
    table.insert_prefix(1, [9])
    assert table.block_tables[1] == [first] and table.admit(2, [9, 2]) == 1
    table = fill_table(1, 4, [1, 2])
    table.allocate([WriteSpan(0, 0, 1)])
    assert table.lengths == {0: 2}
    table.insert_prefix(0, [1, 2])
    check_invariants(table)
    assert len(table._content_to_block) == 2, "a content that nothing can reach was left"
    assert table.admit(1, [1, 2]) == 2 and table.block_tables[1] == table.block_tables[0]


def test_eviction_and_allocation_have_an_order():
    table = fill_table(2, 4, [1, 1, 2, 2], [3, 3])
    table.release(1)
    table.release(0)
    assert table.block_stats().cached_blocks == 3
    assert table.admit(2, [3, 3]) == 2  # used again: now the most recent
    table.release(2)
    table.admit(3)
    table.allocate([WriteSpan(3, 0, 4)])  # the free block, and the second block of sequence 0
    assert table.admit(4, [1, 1, 2, 2]) == 2 and table.admit(5, [3, 3]) == 2
    check_invariants(table)
    table = BlockManager(1, 6)
    for seq, tokens in ((0, 5), (1, 0)):
        table.admit(seq)
        table.allocate([WriteSpan(seq, 0, tokens)])
    freed_blocks = table.block_tables[0][:2]
    table.release(0)
    table.allocate([WriteSpan(1, 0, 2)])
    assert table.block_tables[1] == sorted(freed_blocks) and Counter(table._ref_counts) == {1: 2, 0: 4}


@pytest.mark.acceptance("D2")
def insert_other_tokens(table):
    table.allocate([WriteSpan(1, 1, 2)])
    table.fork(1, 2)
    table.insert_prefix(1, [5, 6])
    table.insert_prefix(2, [5, 7])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda t: t.admit(0), "sequence 0 already exists"),
        (lambda t: t.fork(7, 8), "no sequence 7 to fork"),
        (lambda t: t.fork(0, 1), "sequence 1 already exists"),
        (lambda t: t.allocate([WriteSpan(7, 0, 1)]), "no sequence 7 to write to"),
        (lambda t: t.allocate([WriteSpan(0, 5, 6)]), "has 4 tokens, position 5 would leave a gap"),
        (lambda t: t.allocate([WriteSpan(0, 3, 2)]), "positions 3 to 2"),
        (lambda t: t.allocate([WriteSpan(0, -1, 2)]), "positions -1 to 2"),
        (lambda t: t.allocate([WriteSpan(0, 4, 5), WriteSpan(0, 4, 5)]), "occurs twice"),
        (lambda t: t.release(7), "no sequence 7"),
        (lambda t: (t.release(0), t.release(0)), "no sequence 0"),
        (lambda t: t.insert_prefix(7, []), "no sequence 7"),
        (lambda t: t._release_block(t._free_blocks[0]), "is already free"),
        (lambda t: (t._free_blocks.append(t.block_tables[0][0]), check_invariants(t)), "lost, or both free"),
        (lambda t: (t._free_blocks.append(t._free_blocks[0]), check_invariants(t)), "free list twice"),
        (lambda t: (t.block_tables[1].append(0), check_invariants(t)), "reference count is wrong"),
        (lambda t: t.grow(-1), "-1 more"),
        (insert_other_tokens, "holds other tokens than expected"),
    ],
)
def test_misuse_is_an_assertion_that_names_it(misuse, message):
    table = fill_table(2, 10, [1, 2, 3, 4], [5])
    with pytest.raises(AssertionError, match=message):
        misuse(table)
    for sizes in ((0, 4), (4, -1)):
        with pytest.raises(AssertionError, match=re.escape(str(sizes))):
            BlockManager(*sizes)
