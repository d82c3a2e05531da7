"""Tests of cache/row_cache.py."""

import pytest
import torch
from tests.cache.static_helpers import build, feed, held

from polyhead.nn.kv import KV, attend, visible

MAX_LEN = 40


def test_rows_of_a_step_may_be_any_subset_in_any_order():
    cache = build(3)
    feed(cache, range(3), torch.zeros(3, 1, dtype=torch.long), torch.tensor([[1.0], [2.0], [3.0]]))
    kvs = feed(cache, [2, 0], torch.ones(2, 1, dtype=torch.long), torch.tensor([[4.0], [5.0]]))
    assert [held(kvs, row) for row in range(2)] == [{0: 3, 1: 4}, {0: 1, 1: 5}]
    kvs = feed(cache, [1], torch.ones(1, 1, dtype=torch.long), torch.tensor([[6.0]]))
    assert held(kvs, 0) == {0: 2, 1: 6}


def test_padding_may_stand_on_the_left_or_fill_a_step():
    cache = build(2)
    feed(cache, range(2), torch.full((2, 1), -1), torch.ones(2, 1))
    assert cache.free_tokens() == 2 * MAX_LEN
    kvs = feed(cache, range(2), torch.tensor([[-1, 0], [-1, 0]]), torch.tensor([[8.0, 1.0], [9.0, 2.0]]))
    assert [held(kvs, row) for row in range(2)] == [{0: 1}, {0: 2}]
    kvs = feed(cache, range(2), torch.full((2, 1), -1), torch.ones(2, 1))
    assert [held(kvs, row) for row in range(2)] == [{0: 1}, {0: 2}]


def test_rewriting_a_position_replaces_it():
    cache = build(1)
    feed(cache, [0], torch.tensor([[0, 1]]), torch.tensor([[1.0, 2.0]]))
    assert held(feed(cache, [0], torch.tensor([[1]]), torch.tensor([[9.0]])), 0) == {0: 1, 1: 9}


def test_select_of_all_rows_in_order_moves_nothing():
    cache = build(3)
    feed(cache, range(3), torch.arange(4).expand(3, 4), torch.ones(3, 4))
    before = [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers]
    cache.select(torch.arange(3))
    assert [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers] == before


def test_select_grows_and_shrinks_the_number_of_rows():
    cache = build(2)
    feed(cache, range(2), torch.zeros(2, 1, dtype=torch.long), torch.tensor([[1.0], [2.0]]))
    cache.select([1, 0, 0, 1])
    kvs = feed(cache, range(4), torch.ones(4, 1, dtype=torch.long), torch.arange(3.0, 7.0)[:, None])
    assert [held(kvs, row) for row in range(4)] == [{0: 2, 1: 3}, {0: 1, 1: 4}, {0: 1, 1: 5}, {0: 2, 1: 6}]
    cache.select([3])
    assert held(feed(cache, [0], torch.tensor([[2]]), torch.tensor([[7.0]])), 0) == {0: 2, 1: 6, 2: 7}
    cache.select([])
    assert cache.free_tokens() == 0


@pytest.mark.acceptance("A4")
def test_not_a_number_in_padding_changes_nothing():
    """Padding of every step is NaN; what the spare slot swallows must stay finite, for all slots are read."""
    torch.manual_seed(0)
    clean, poisoned = build(3, chunk=8), build(3, chunk=8)
    q = torch.randn(3, 4, 1, 3)
    for pos in ([[0, 1, 2], [0, -1, -1], [0, 1, -1]], [[3], [1], [-1]], [[-1], [2], [2]], [[4], [3], [3]]):
        pos = torch.tensor(pos)
        bad = pos.masked_fill(pos >= 0, 0).bool()[:, None, :, None]
        for cache in (clean, poisoned):
            cache.prepare_step(range(3), pos)
        for mine, theirs in zip(clean.layers, poisoned.layers, strict=True):
            kv = KV(torch.randn(3, 2, pos.size(1), 3), torch.randn(3, 2, pos.size(1), 5), pos[:, None])
            dirty = KV(kv.k.masked_fill(bad, torch.nan), kv.v.masked_fill(bad, torch.nan), kv.pos)
            outs = []
            for layer, new in ((mine, kv), (theirs, dirty)):
                got = layer.update(new)
                got = KV(got.k, got.v[..., :3], got.pos)
                outs.append(attend(q, got, visible(pos[:, -1:], got.pos, causal=True)))
            assert torch.equal(*outs)
            assert outs[0].isfinite().all()


@pytest.mark.acceptance("A4")
@pytest.mark.parametrize("rows", [[0, 1], [1]], ids=["aligned", "one row"])
def test_slots_that_were_skipped_are_finite_and_unseen(rows):
    cache = build(2, chunk=8)
    feed(cache, range(2), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1))
    for got in feed(cache, rows, torch.full((len(rows), 1), 5), torch.ones(len(rows), 1)):
        assert got.pos[:, 0].tolist() == [[0, -1, -1, -1, -1, 5, -1, -1, -1]] * len(rows)
        assert got.k.isfinite().all()
        assert got.v.isfinite().all()


@pytest.mark.acceptance("A4")
def test_a_released_row_leaves_no_number_behind():
    cache = build(2)
    kv = KV(torch.full((2, 2, 4, 3), torch.nan), torch.full((2, 2, 4, 5), torch.nan))
    cache.prepare_step(range(2), torch.arange(4).expand(2, 4))
    for layer in cache.layers:
        layer.update(kv)
    for row in range(2):
        cache.release(row)
    for got in feed(cache, range(2), torch.tensor([[0, 1], [0, -1]]), torch.ones(2, 2)):
        assert got.k.isfinite().all()
        assert got.v.isfinite().all()
    assert cache.free_tokens() == 2 * MAX_LEN - 3
