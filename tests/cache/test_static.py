import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.cache_helpers import MAX_LEN, ROWS, actions, build_static, feed, feed_tokens, play, stamps_of

from polyhead.core.errors import UserError
from polyhead.nn.kv import visible


@given(st.lists(actions, max_size=12), st.integers(1, 8), st.booleans())
def test_any_history_equals_lists(history, chunk, preallocate):
    cache = build_static(ROWS, chunk=chunk, preallocate=preallocate)

    def check(lists):
        assert cache.free_tokens() == len(lists) * MAX_LEN - sum(map(len, lists))

    play(cache, history, check)


@pytest.mark.parametrize("n_rows", [1, 4])
def test_aligned_rows_equal_ragged_rows(n_rows):
    """Slices and scatter are two ways of one thing: the second cache has one more, idle row."""
    aligned_cache, ragged_cache = build_static(n_rows, chunk=2), build_static(n_rows + 1, chunk=2)
    for start, n in ((0, 5), (5, 1), (6, 1), (7, 3)):
        step = range(n_rows), torch.arange(start, start + n).expand(n_rows, n), torch.randn(n_rows, n)
        for a, b in zip(feed(aligned_cache, *step), feed(ragged_cache, *step), strict=True):
            assert all(map(torch.equal, (a.k, a.v, a.pos), (b.k, b.v, b.pos)))
        assert a.k.data_ptr() == aligned_cache.layers[-1].k.data_ptr(), "aligned rows are read without a copy"


def test_unused_slots_are_zeros_and_storage_grows():
    cache = build_static(2, max_len=4, chunk=4)
    pos = torch.tensor([[0, 1, 2], [0, -1, -1]])
    kvs = feed(cache, range(2), pos, torch.ones(2, 3))
    assert kvs[0].pos is kvs[1].pos and kvs[0].mask is kvs[1].mask
    assert kvs[0].pos.tolist() == [[[0, 1, 2, -1, -1]], [[0, -1, -1, -1, -1]]]
    assert torch.equal(kvs[0].mask, visible(pos, kvs[0].pos, causal=True))
    for kv in kvs:
        assert (kv.k.shape, kv.v.shape) == ((2, 2, 5, 3), (2, 2, 5, 5))
        is_empty = (kv.pos < 0)[..., None]
        assert all((x.masked_select(is_empty) == 0).all() for x in (kv.k, kv.v))
    with pytest.raises(UserError):  # a refused step leaves the cache unchanged
        cache.prepare_step(range(2), torch.tensor([[3], [4]]))
    assert cache.free_tokens() == 4
    assert stamps_of(feed_tokens(cache, [0], 3, [[3.0]]), 0) == {0: 1, 1: 1, 2: 1, 3: 3}
    cache = build_static(3, max_len=100, chunk=8)
    row, positions = 2 * 2 * (3 + 5) * 4, 8
    assert cache.nbytes == 3 * (row + positions)
    for length, slots in ((1, 8), (8, 8), (9, 16), (17, 24), (80, 80), (81, 90), (91, 100), (100, 100)):
        feed_tokens(cache, range(3), length - 1, [[1.0]] * 3)
        assert cache.nbytes == 3 * (slots + 1) * (row + positions)
    cache.select([0])
    assert cache.nbytes == 101 * (4 * row + positions), "a row, and the storage it came from"
    cache.select([0, 0])
    assert cache.nbytes == 101 * (4 * row + 2 * positions), "two rows fit where it came from"
