import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.static_helpers import SHAPE, build, feed, held

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.kv import visible

MAX_LEN = 40


ROWS = 3
step = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3)),
    min_size=1,
    max_size=ROWS,
    unique_by=lambda r: r[0],
)
action = st.one_of(
    st.tuples(st.just("step"), step),
    st.tuples(st.just("together"), st.integers(1, 3)),
    st.tuples(st.just("select"), st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("fork"), st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1))),
    st.tuples(st.just("release"), st.integers(0, ROWS - 1)),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(action, max_size=14), st.integers(1, 8))
def test_any_history_of_ragged_steps_forks_and_selections_equals_plain_lists(actions, chunk):
    cache, lists, stamp = build(ROWS, chunk=chunk), [[] for _ in range(ROWS)], 0
    for name, what in actions:
        if name == "select":
            cache.select(what)
            lists = [list(lists[row]) for row in what]
        elif name == "fork":
            cache.fork(*what)
            lists[what[1]] = list(lists[what[0]])
        elif name == "release":
            cache.release(what)
            lists[what] = []
        else:
            new = what if name == "step" else [(row, what) for row in range(ROWS)]
            new = [(row, min(n, MAX_LEN - len(lists[row]))) for row, n in new]
            width = max(1, *(n for _, n in new), 1)
            pos, stamps = torch.full((len(new), width), -1), torch.zeros(len(new), width)
            for i, (row, n) in enumerate(new):
                first = len(lists[row])
                lists[row] += range(stamp + 1, stamp + 1 + n)
                pos[i, :n] = torch.arange(first, first + n)
                stamps[i, :n] = torch.arange(stamp + 1, stamp + 1 + n)
                stamp += n
            kvs = feed(cache, [row for row, _ in new], pos, stamps)
            for i, (row, _) in enumerate(new):
                assert held(kvs, i) == dict(enumerate(lists[row]))
        assert cache.free_tokens() == ROWS * MAX_LEN - sum(map(len, lists))


@pytest.mark.parametrize("n_rows", [1, 4])
def test_aligned_rows_give_what_ragged_rows_give(n_rows):
    """Slices and scatter are two ways of the same thing: the second cache has one more, idle row."""
    fast, slow = build(n_rows, chunk=2), build(n_rows + 1, chunk=2)
    for start, n in ((0, 5), (5, 1), (6, 1), (7, 3)):
        pos = torch.arange(start, start + n).expand(n_rows, n)
        stamp = torch.randn(n_rows, n)
        for a, b in zip(
            feed(fast, range(n_rows), pos, stamp), feed(slow, range(n_rows), pos, stamp), strict=True
        ):
            assert torch.equal(a.k, b.k)
            assert torch.equal(a.v, b.v)
            assert torch.equal(a.pos, b.pos)
        assert a.k.data_ptr() == fast.layers[-1].k.data_ptr(), "aligned rows are read without a copy"


def test_unused_slots_are_unseen_zeros_and_positions_and_sight_are_one_object():
    cache = build(2, chunk=4)
    pos = torch.tensor([[0, 1, 2], [0, -1, -1]])
    kvs = feed(cache, range(2), pos, torch.ones(2, 3))
    assert [kv.k.shape for kv in kvs] == [(2, 2, 5, 3)] * 2
    assert [kv.v.shape for kv in kvs] == [(2, 2, 5, 5)] * 2
    assert kvs[0].pos is kvs[1].pos
    assert kvs[0].mask is kvs[1].mask
    assert kvs[0].pos.tolist() == [[[0, 1, 2, -1, -1]], [[0, -1, -1, -1, -1]]]
    assert torch.equal(kvs[0].mask, visible(pos, kvs[0].pos, causal=True))
    for kv in kvs:
        unused = (kv.pos < 0)[..., None]
        assert (kv.k.masked_select(unused) == 0).all()
        assert (kv.v.masked_select(unused) == 0).all()


def test_bytes_are_those_of_the_storage_and_grow_with_use():
    cache = build(3, max_len=100, chunk=8)

    def wanted(slots):
        return 3 * (slots + 1) * (2 * 2 * (3 + 5) * 4 + 8)

    assert cache.nbytes == wanted(0)
    for length, slots in ((1, 8), (8, 8), (9, 16), (17, 24), (80, 80), (81, 90), (91, 100), (100, 100)):
        feed(cache, range(3), torch.full((3, 1), length - 1), torch.ones(3, 1))
        assert cache.nbytes == wanted(slots)
    cache.select([0])
    positions = cache.pos.nbytes
    assert cache.nbytes - positions == (wanted(100) - 3 * positions) * 4 / 3, (
        "a row, and the storage it came from"
    )
    cache.select([0, 0])
    assert cache.nbytes - 2 * positions == (wanted(100) - 3 * positions) * 4 / 3, (
        "two rows fit where it came from"
    )


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("max_len", [1, 31, 32, 33])
def test_the_last_position_fits_and_the_next_is_refused(max_len):
    cache = build(1, max_len=max_len)
    stamp = torch.arange(1.0, max_len + 1)[None]
    kvs = feed(cache, [0], torch.arange(max_len)[None], stamp)
    assert held(kvs, 0) == dict(enumerate(range(1, max_len + 1)))
    assert cache.free_tokens() == 0
    with pytest.raises(
        UserError, match=f"position {max_len} does not fit into a cache of {max_len} positions"
    ):
        cache.prepare_step([0], torch.tensor([[max_len]]))


def test_a_refused_step_leaves_the_cache_as_it_was():
    cache = build(2, max_len=3)
    feed(cache, range(2), torch.zeros(2, 1, dtype=torch.long), torch.tensor([[1.0], [2.0]]))
    with pytest.raises(UserError):
        cache.prepare_step(range(2), torch.tensor([[1], [3]]))
    assert cache.free_tokens() == 4
    assert held(feed(cache, [0], torch.tensor([[1]]), torch.tensor([[3.0]])), 0) == {0: 1, 1: 3}


def test_values_keep_the_type_of_the_cache():
    shape = SHAPE._replace(dtype=torch.bfloat16)
    cache = CACHE.build(Choice("static"), shape, 1, 8)
    kv = feed(cache, [0], torch.tensor([[0]]), torch.ones(1, 1))[0]
    assert (kv.k.dtype, kv.v.dtype) == (torch.bfloat16, torch.bfloat16)


def test_a_copy_is_independent():
    cache = build(1)
    feed(cache, [0], torch.tensor([[0]]), torch.tensor([[1.0]]))
    other = copy.deepcopy(cache)
    feed(other, [0], torch.tensor([[0]]), torch.tensor([[2.0]]))
    assert held(feed(cache, [0], torch.tensor([[1]]), torch.tensor([[3.0]])), 0) == {0: 1, 1: 3}


def test_a_chunk_of_nothing_is_refused():
    with pytest.raises(UserError, match="chunk is 0"):
        build(1, chunk=0)
