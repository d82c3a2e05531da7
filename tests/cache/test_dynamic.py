"""The growing cache against lists that are appended to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

SHAPE = CacheShape(2, 2, 3, 5, torch.float32, torch.device("cpu"))
ROWS, MAX_LEN = 3, 30
TOKEN = 8 + 2 * 2 * (3 + 5) * 4  # a position, and keys and values of two heads in two layers


def feed(cache, rows, pos):
    """One step of random keys and values; what is given back, and what came."""
    cache.prepare_step(rows, pos)
    new = [
        KV(torch.randn(len(pos), 2, pos.size(1), 3), torch.randn(len(pos), 2, pos.size(1), 5))
        for _ in cache.layers
    ]
    return [layer.update(kv) for layer, kv in zip(cache.layers, new, strict=True)], new


step = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3)),
    min_size=1,
    max_size=ROWS,
    unique_by=lambda r: r[0],
)
row = st.integers(0, ROWS - 1)
action = st.one_of(
    st.tuples(st.just("step"), step),
    st.tuples(st.just("step"), step),
    st.tuples(st.just("again"), row),
    st.tuples(st.just("select"), st.lists(row, min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("fork"), st.tuples(row, row)),
    st.tuples(st.just("release"), row),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(action, max_size=12))
def test_any_history_equals_lists_in_the_order_of_arrival(actions):
    """A list of (position, its keys and values) for each row; what comes again is taken out where it was."""
    torch.manual_seed(0)
    cache, lists = CACHE.build(Choice("growing"), SHAPE, ROWS, MAX_LEN), [[] for _ in range(ROWS)]
    for name, what in actions:
        if name == "select":
            cache.select(what)
            lists = [list(lists[i]) for i in what]
        elif name == "fork":
            cache.fork(*what)
            lists[what[1]] = list(lists[what[0]])
        elif name == "release":
            cache.release(what)
            lists[what] = []
        else:
            new = what if name == "step" else [(what, 2)]
            back = int(name == "again")  # its first token has a position that is held, if there is one
            firsts = [max(0, max([-1, *(p for p, *_ in lists[i])]) + 1 - back) for i, _ in new]
            pos = torch.full((len(new), 3), -1)
            for i, ((_, n), first) in enumerate(zip(new, firsts, strict=True)):
                pos[i, :n] = torch.arange(first, first + n)
            given_back, fed = feed(cache, [i for i, _ in new], pos)
            for i, (row, n) in enumerate(new):
                lists[row] = [held for held in lists[row] if held[0] not in pos[i, :n].tolist()]
                lists[row] += [
                    (int(pos[i, t]), *((kv.k[i, :, t], kv.v[i, :, t]) for kv in fed)) for t in range(n)
                ]
                for depth, kv in enumerate(given_back, 1):
                    there = (kv.pos[i, 0] >= 0).nonzero()[:, 0]
                    assert kv.pos[i, 0, there].tolist() == [held[0] for held in lists[row]]
                    for slot, held in zip(there.tolist(), lists[row], strict=True):
                        assert torch.equal(kv.k[i, :, slot], held[depth][0])
                        assert torch.equal(kv.v[i, :, slot], held[depth][1])
        assert cache.memory_usage().used_bytes == TOKEN * sum(map(len, lists))


def test_storage_is_as_long_as_the_longest_row_and_no_longer():
    cache = CACHE.build(Choice("growing"), SHAPE, 2, MAX_LEN)
    assert cache.nbytes == 0
    feed(cache, [0, 1], torch.tensor([[0, 1, 2], [0, -1, -1]]))
    assert cache.nbytes == 2 * 3 * TOKEN
    assert cache.memory_usage()[:2] == (2 * 3 * TOKEN, 4 * TOKEN)
    feed(cache, [1], torch.tensor([[1]]))
    assert cache.nbytes == 2 * 3 * TOKEN
    cache.select([1, 1, 1])
    assert cache.memory_usage()[:2] == (3 * 3 * TOKEN, 6 * TOKEN)
    assert cache.free_tokens() == 3 * (MAX_LEN - 2)


@pytest.mark.acceptance("A4")
def test_not_a_number_in_padding_is_not_kept():
    cache = CACHE.build(Choice("growing"), SHAPE, 2, MAX_LEN)
    pos = torch.tensor([[0, 1], [0, -1]])
    cache.prepare_step([0, 1], pos)
    k = torch.ones(2, 2, 2, 3).masked_fill((pos < 0)[:, None, :, None], torch.nan)
    kv = cache.layers[0].update(KV(k, k.repeat(1, 1, 1, 2)[..., :5]))
    assert kv.k.isfinite().all()
    assert kv.v.isfinite().all()
