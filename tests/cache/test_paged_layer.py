"""Tests of cache/paged_layer.py."""

import pytest
import torch
from tests.cache.paged_helpers import build, feed, feed_tokens, held

from polyhead.nn.kv import KV, attend, visible


def test_pages_are_brought_together_only_when_somebody_asks():
    cache = build(2, block_size=4)
    feed_tokens(cache, [0], 0, [[1.0, 2, 3, 4, 5]])
    feed_tokens(cache, [1], 0, [[6.0]])
    kvs = feed_tokens(cache, [0], 5, [[7.0, 8, 9, 10]])  # its third page does not lie behind the second
    kv = kvs[0]
    assert kv.pages.table.tolist() == [[1, 2, 4]]
    assert kv.pages.k.untyped_storage().data_ptr() == cache.layers[0].k.untyped_storage().data_ptr()
    assert "k" not in vars(kv)
    assert kv.k is kv.k
    for one, whole in ((kv.pages.k, kv.k), (kv.pages.v, kv.v)):
        assert torch.equal(torch.cat([one[1], one[2], one[4]], 1), whole[0])
    assert held(kvs, 0) == dict(enumerate([1, 2, 3, 4, 5, 7, 8, 9, 10]))


@pytest.mark.acceptance("D1")
def test_a_copy_is_made_when_the_first_of_two_writes_and_not_before():
    cache = build(2, block_size=4)
    feed_tokens(cache, [0], 0, [[1.0, 2, 3, 4, 5, 6]])
    cache.fork(0, 1)
    assert cache.block_stats()[2:7] == (2, 0, 2, 4, 6)
    assert held(feed_tokens(cache, [1], 6, [[7.0]]), 0) == dict(enumerate([1, 2, 3, 4, 5, 6, 7]))
    assert cache.block_stats()[2:7] == (3, 0, 1, 4, 9)
    assert held(feed_tokens(cache, [0], 6, [[8.0]]), 0) == dict(enumerate([1, 2, 3, 4, 5, 6, 8]))
    assert held(feed_tokens(cache, [1], 7, [[9.0]]), 0) == dict(enumerate([1, 2, 3, 4, 5, 6, 7, 9]))
    assert cache.block_stats()[2:7] == (3, 0, 1, 4, 11)


@pytest.mark.acceptance("A4")
def test_not_a_number_in_padding_changes_nothing():
    torch.manual_seed(0)
    clean, poisoned = build(3, block_size=2), build(3, block_size=2)
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
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("through", ["release", "copy"])
def test_a_page_that_was_given_back_leaves_no_number_behind(bad, through):
    cache = build(2, block_size=4, max_blocks=4)
    cache.prepare_step([0], torch.arange(6)[None])
    for layer in cache.layers:
        layer.update(KV(torch.full((1, 2, 6, 3), bad), torch.full((1, 2, 6, 5), bad)))
    if through == "copy":
        cache.fork(0, 1)
        feed_tokens(cache, [1], 6, [[1.0]])
        cache.release(1)
    cache.release(0)
    assert cache.block_manager.n_available == cache.block_manager.n_blocks
    for got in feed(cache, range(2), torch.tensor([[0, 1, 2, 3, 4], [0, -1, -1, -1, -1]]), torch.ones(2, 5)):
        assert got.k.isfinite().all()
        assert got.v.isfinite().all()
    assert not cache._nonfinite_pages & {
        page for table in cache.block_manager.block_tables.values() for page in table
    }


def test_storage_grows_by_need_or_an_eighth_and_never_past_the_limit():
    cache, page = build(3, max_len=100, block_size=4), 4 * 2 * 2 * (3 + 5) * 4
    assert cache.nbytes == page  # the one that swallows padding
    before = 0
    for length, pages in ((1, 1), (4, 1), (5, 2), (60, 15), (61, 16), (64, 16), (65, 18), (72, 18), (73, 20)):
        feed_tokens(cache, [0], before, [[1.0] * (length - before)])
        assert cache.nbytes == (1 + pages) * page
        before = length
    feed_tokens(cache, [1], 0, [[1.0] * 100])
    feed_tokens(cache, [2], 0, [[1.0] * 100])
    feed_tokens(cache, [0], 73, [[1.0] * 27])
    assert cache.nbytes == (1 + 75) * page
    assert cache.free_tokens() == 0
