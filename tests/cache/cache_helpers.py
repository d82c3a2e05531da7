import copy
from collections import Counter
from functools import partial

import torch
from hypothesis import strategies as st

from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, attend, attention_mask

SHAPE = CacheShape(2, n_kv_heads=2, head_dim=3, v_dim=5, dtype=torch.float32, device=torch.device("cpu"))
MAX_LEN, ROWS = 40, 3


def build_cache(name, n_rows, max_len=MAX_LEN, **options):
    return CACHE.build(Choice(name, **options), SHAPE, n_rows, max_len)


build_static, build_paged = partial(build_cache, "static"), partial(build_cache, "paged")


def feed(cache, rows, pos, stamps):
    """One step; the output of each layer. Keys and values tell their layer and stamp (B, T)."""
    cache.prepare_step(rows, pos)
    x = stamps[:, None, :, None]
    k = [x + 1000.0 * i + torch.arange(6.0).view(1, 2, 1, 3) / 10 for i in range(2)]
    v = [-x - 1000.0 * i - torch.arange(10.0).view(1, 2, 1, 5) / 100 for i in range(2)]
    return [layer.update(KV(k[i], v[i], pos[:, None])) for i, layer in enumerate(cache.layers)]


def feed_tokens(cache, rows, first, stamps):
    stamps = torch.tensor(stamps, dtype=torch.float)
    return feed(cache, rows, torch.arange(first, first + stamps.size(1)).expand_as(stamps), stamps)


def stamps_of(kvs, row):
    """What a row may see: {position: stamp}, the same in every layer, keys and values agreeing."""
    by_layer = []
    for i, kv in enumerate(kvs):
        slots = (kv.pos[row, 0] >= 0).nonzero()[:, 0]
        positions = kv.pos[row, 0, slots].tolist()
        assert len(set(positions)) == len(slots)
        k, v = kv.k[row, 0, slots, 0] - 1000 * i, -kv.v[row, 0, slots, 0] - 1000 * i
        torch.testing.assert_close(k, v)
        by_layer.append(dict(zip(positions, k.round().int().tolist(), strict=True)))
    assert by_layer[0] == by_layer[1]
    return by_layer[0]


row = st.integers(0, ROWS - 1)
row_steps = st.lists(st.tuples(row, st.integers(0, 3)), min_size=1, max_size=ROWS, unique_by=lambda r: r[0])
basic_actions = (
    st.tuples(st.just("step"), row_steps),
    st.tuples(st.just("select"), st.lists(row, min_size=1, max_size=ROWS)),
    st.tuples(st.just("fork"), st.tuples(row, row)),
    st.tuples(st.just("release"), row),
)
actions = st.one_of(*basic_actions, st.tuples(st.just("aligned step"), st.integers(1, 3)))
rewrites = st.tuples(st.just("rewrite"), st.tuples(row, st.integers(0, MAX_LEN)))


def move_rows(cache, lists, name, argument):
    if name == "select":
        rows = [row % len(lists) for row in argument]
        cache.select(rows)
        return [list(lists[row]) for row in rows]
    if name == "fork":
        src, dst = (row % len(lists) for row in argument)
        cache.fork(src, dst)
        lists[dst] = list(lists[src])
    else:
        cache.release(argument % len(lists))
        lists[argument % len(lists)] = []
    return lists


def play(cache, history, check):
    lists, stamp = [[] for _ in range(ROWS)], 0
    for name, argument in history:
        if name in ("select", "fork", "release"):
            lists = move_rows(cache, lists, name, argument)
        else:
            if name == "step":
                new = [(row, len(lists[row]), n) for row, n in argument if row < len(lists)]
                new = new or [(0, len(lists[0]), 1)]
            elif name == "rewrite":
                row = argument[0] % len(lists)
                new = [(row, argument[1] % (len(lists[row]) + 1), 2)]
            else:
                new = [(row, len(lists[row]), argument) for row in range(len(lists))]
            new = [(row, start, min(n, MAX_LEN - start)) for row, start, n in new]
            width = max(1, *(n for _, _, n in new), 1)
            pos, stamps = torch.full((len(new), width), -1), torch.zeros(len(new), width)
            for i, (row, start, n) in enumerate(new):
                pos[i, :n] = torch.arange(start, start + n)
                stamps[i, :n] = torch.arange(stamp + 1, stamp + 1 + n)
                lists[row][start : start + n] = range(stamp + 1, stamp + 1 + n)
                stamp += n
            kvs = feed(cache, [row for row, _, _ in new], pos, stamps)
            for i, (row, _, _) in enumerate(new):
                assert stamps_of(kvs, i) == dict(enumerate(lists[row]))
        check(lists)


class Harness:
    """A lossy cache of one layer, and a plain reference of each row and key head.

    A reference has ``length`` and ``step(q, k, v)``: (group, n, D), (n, D), (n, Dv) -> (group, n, Dv).
    """

    def __init__(self, choice, make_reference, n_rows, q_scale=1.0):
        self.cache = CACHE.build(choice, SHAPE._replace(n_layers=1), n_rows, 99)
        self.make_reference, self.q_scale = make_reference, q_scale
        self.rows = [self.new_row() for _ in range(n_rows)]

    def new_row(self):
        return [self.make_reference(head) for head in range(2)]

    def step(self, rows, lengths):
        pos = torch.full((len(rows), max(lengths)), -1)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            pos[i, :n] = torch.arange(self.rows[row][0].length, self.rows[row][0].length + n)
        self.cache.prepare_step(rows, pos)
        q = self.q_scale * torch.randn(len(rows), 4, pos.size(1), 3)
        k, v = torch.randn(len(rows), 2, pos.size(1), 3), torch.randn(len(rows), 2, pos.size(1), 5)
        (layer,) = self.cache.layers
        padding = (pos < 0)[:, None, :, None]
        kv = layer.update(KV(k.masked_fill(padding, torch.nan), v.masked_fill(padding, torch.nan)))
        hook = getattr(layer, "weights_hook", None)
        hooks = [hook] if hook else []
        out = attend(q, kv, attention_mask(pos, kv, pos.size(1), True), causal=True, hooks=hooks)
        for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            for head, reference in enumerate(self.rows[row]):
                group = slice(2 * head, 2 * head + 2)
                expected = reference.step(q[i, group, :n], k[i, head, :n], v[i, head, :n])
                torch.testing.assert_close(out[i, group, :n], expected, rtol=1e-4, atol=1e-5)

    def select(self, rows):
        self.cache.select(rows)
        self.rows = [copy.deepcopy(self.rows[row]) for row in rows]

    def fork(self, src, dst):
        self.cache.fork(src, dst)
        self.rows[dst] = copy.deepcopy(self.rows[src])

    def release(self, row):
        self.cache.release(row)
        self.rows[row] = self.new_row()


def check_invariants(table):
    """Assert the invariants between two calls; linear in the number of blocks."""
    holders = Counter(block for blocks in table.block_tables.values() for block in blocks)
    assert all(holders[block] == n for block, n in enumerate(table._ref_counts)), "a reference count is wrong"
    assert sum(holders.values()) == sum(table._ref_counts), "a block table has an invalid block"
    free_blocks = set(table._free_blocks)
    cached_blocks = set(table._cached_blocks)
    used_blocks = set(holders)
    assert len(free_blocks) == len(table._free_blocks), "a block is in the free list twice"
    assert len(free_blocks) + len(cached_blocks) + len(used_blocks) == table.n_blocks, (
        "a block is lost, or both free and allocated"
    )
    assert free_blocks | cached_blocks | used_blocks == set(range(table.n_blocks)), (
        "a block is lost, or both free and allocated"
    )
    assert cached_blocks <= set(table._block_to_content) <= cached_blocks | used_blocks, (
        "cached blocks must be allocated or evictable, and evictable ones must be cached"
    )
    by_content = {content: block for block, (_, content) in table._block_to_content.items()}
    assert by_content == table._content_to_block and len(by_content) == len(table._block_to_content), (
        "hashes and blocks do not match"
    )
    assert table.block_tables.keys() == table.lengths.keys() == table._prefix_ids.keys(), (
        "incomplete sequence"
    )
    for seq, blocks in table.block_tables.items():
        assert len(blocks) == table._num_blocks(table.lengths[seq]), (
            f"sequence {seq}: the number of blocks does not match its length"
        )
        assert len(set(blocks)) == len(blocks), f"sequence {seq} has a block twice"
        assert len(table._prefix_ids[seq]) <= table.lengths[seq] // table.block_size, (
            f"sequence {seq}: more hashes than full blocks"
        )
    assert len(used_blocks) <= table.peak_blocks, "peak usage is below current usage"
