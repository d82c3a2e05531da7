import pytest
import torch
from tests.cache.cache_helpers import build_paged, feed, feed_tokens, stamps_of

from polyhead.nn.kv import KV


def test_pages_are_gathered_lazily_and_grow_by_eighths():
    cache = build_paged(2, block_size=4)
    feed_tokens(cache, [0], 0, [[1.0, 2, 3, 4, 5]])
    feed_tokens(cache, [1], 0, [[6.0]])
    kvs = feed_tokens(cache, [0], 5, [[7.0, 8, 9, 10]])  # its third page is not next to the second
    kv = kvs[0]
    assert kv.pages.table.tolist() == [[1, 2, 4]]
    assert kv.pages.k.untyped_storage().data_ptr() == cache.layers[0].k.untyped_storage().data_ptr()
    assert "k" not in vars(kv) and kv.k is kv.k
    for pages, full in ((kv.pages.k, kv.k), (kv.pages.v, kv.v)):
        assert torch.equal(torch.cat([pages[1], pages[2], pages[4]], 1), full[0])
    assert stamps_of(kvs, 0) == dict(enumerate([1, 2, 3, 4, 5, 7, 8, 9, 10]))
    cache, page = build_paged(3, max_len=100, block_size=4), 4 * 2 * 2 * (3 + 5) * 4
    assert cache.nbytes == page  # the one for padding
    n_fed = 0
    for length, pages in ((1, 1), (4, 1), (5, 2), (60, 15), (61, 16), (64, 16), (65, 18), (72, 18), (73, 20)):
        feed_tokens(cache, [0], n_fed, [[1.0] * (length - n_fed)])
        assert cache.nbytes == (1 + pages) * page
        n_fed = length
    for row, first in ((1, 0), (2, 0), (0, 73)):
        feed_tokens(cache, [row], first, [[1.0] * (100 - first)])
    assert cache.nbytes == (1 + 75) * page and cache.free_tokens() == 0


@pytest.mark.acceptance("A4")
@pytest.mark.parametrize(("fill", "how"), [(torch.nan, "copy"), (torch.inf, "release")])
def test_reused_page_has_no_nonfinite_values(fill, how):
    cache = build_paged(2, block_size=4, max_blocks=4)
    cache.prepare_step([0], torch.arange(6)[None])
    for layer in cache.layers:
        layer.update(KV(torch.full((1, 2, 6, 3), fill), torch.full((1, 2, 6, 5), fill)))
    if how == "copy":
        cache.fork(0, 1)
        feed_tokens(cache, [1], 6, [[1.0]])
        cache.release(1)
    cache.release(0)
    assert cache.block_manager.n_available == cache.block_manager.n_blocks
    pos = torch.tensor([[0, 1, 2, 3, 4], [0, -1, -1, -1, -1]])
    for kv in feed(cache, range(2), pos, torch.ones(2, 5)):
        assert kv.k.isfinite().all() and kv.v.isfinite().all()
    used_pages = {page for table in cache.block_manager.block_tables.values() for page in table}
    assert not cache._nonfinite_pages & used_pages
