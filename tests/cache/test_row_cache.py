import copy
from functools import partial

import pytest
import torch
from tests.cache.cache_helpers import (
    MAX_LEN,
    SHAPE,
    build_cache,
    build_paged,
    build_static,
    feed,
    feed_tokens,
    stamps_of,
)

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV, attend, visible

BUILDERS = {
    "static": partial(build_static, chunk=8),
    "paged": partial(build_paged, block_size=2),
    "growing": partial(build_cache, "growing"),
}


@pytest.mark.acceptance("A4")
def test_padding_and_released_rows():
    cache = build_static(2)
    empty = torch.full((2, 1), -1), torch.ones(2, 1)
    feed(cache, range(2), *empty)
    assert cache.free_tokens() == 2 * MAX_LEN
    kvs = feed(cache, range(2), torch.tensor([[-1, 0], [-1, 0]]), torch.tensor([[8.0, 1.0], [9.0, 2.0]]))
    for output in (kvs, feed(cache, range(2), *empty)):
        assert [stamps_of(output, row) for row in range(2)] == [{0: 1}, {0: 2}]
    cache = build_static(2)
    cache.prepare_step(range(2), torch.arange(4).expand(2, 4))
    for layer in cache.layers:
        layer.update(KV(torch.full((2, 2, 4, 3), torch.nan), torch.full((2, 2, 4, 5), torch.nan)))
    pointers = [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers]
    cache.select(torch.arange(2))  # all rows in order: nothing moves
    assert [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers] == pointers
    for row in range(2):
        cache.release(row)
    for kv in feed(cache, range(2), torch.tensor([[0, 1], [0, -1]]), torch.ones(2, 2)):
        assert kv.k.isfinite().all() and kv.v.isfinite().all()
    assert cache.free_tokens() == 2 * MAX_LEN - 3


@pytest.mark.acceptance("A4")
@pytest.mark.parametrize("name", BUILDERS)
def test_nan_in_padding_is_inert(name):
    """Slots of padding are read by attention, so what is written there must be finite."""
    torch.manual_seed(0)
    clean, dirty = (BUILDERS[name](3) for _ in range(2))
    q = torch.randn(3, 4, 1, 3)
    for pos in ([[0, 1, 2], [0, -1, -1], [0, 1, -1]], [[3], [1], [-1]], [[-1], [2], [2]], [[4], [3], [3]]):
        pos = torch.tensor(pos)
        padding = (pos < 0)[:, None, :, None]
        for cache in (clean, dirty):
            cache.prepare_step(range(3), pos)
        for layers in zip(clean.layers, dirty.layers, strict=True):
            k, v, outputs = torch.randn(3, 2, pos.size(1), 3), torch.randn(3, 2, pos.size(1), 5), []
            for layer, fill in zip(layers, (0.0, torch.nan), strict=True):
                new = KV(k.masked_fill(padding, fill), v.masked_fill(padding, fill), pos[:, None])
                kv = layer.update(new)
                outputs.append(attend(q, kv, visible(pos[:, -1:], kv.pos, causal=True)))
            assert torch.equal(*outputs) and outputs[0].isfinite().all()


@pytest.mark.acceptance("A4")
@pytest.mark.parametrize("rows", [[0, 1], [1]], ids=["aligned", "one row"])
def test_skipped_slots_are_finite_and_masked(rows):
    cache = build_static(2, chunk=8)
    feed_tokens(cache, range(2), 0, [[1.0], [1.0]])
    for kv in feed_tokens(cache, rows, 5, [[1.0]] * len(rows)):
        assert kv.pos[:, 0].tolist() == [[0, -1, -1, -1, -1, 5, -1, -1, -1]] * len(rows)
        assert kv.k.isfinite().all() and kv.v.isfinite().all()


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("name", ["static", "paged"])
@pytest.mark.parametrize("max_len", [1, 31, 32, 33])
def test_max_len_is_exact(name, max_len):
    cache = CACHE.build(Choice(name), SHAPE, 1, max_len)
    kvs = feed_tokens(cache, [0], 0, [list(range(1, max_len + 1))])
    assert stamps_of(kvs, 0) == dict(enumerate(range(1, max_len + 1))) and cache.free_tokens() == 0
    message = f"position {max_len} does not fit into a cache of {max_len} positions"
    with pytest.raises(UserError, match=message):
        cache.prepare_step([0], torch.tensor([[max_len]]))


@pytest.mark.parametrize("name", ["static", "growing", "paged", "window", "quantized"])
def test_copies_and_appended_rows_are_independent(name):
    cache = CACHE.build(Choice(name), SHAPE, 1, 8)
    feed_tokens(cache, [0], 0, [[1.0]])
    if cache.rewinds:
        feed_tokens(copy.deepcopy(cache), [0], 0, [[2.0]])
    cache.append_rows(2)
    assert stamps_of(feed_tokens(cache, [2], 0, [[5.0]]), 0) == {0: 5} and cache.num_rows == 3
    assert stamps_of(feed_tokens(cache, [0], 1, [[3.0]]), 0) == {0: 1, 1: 3}
    low_precision = CACHE.build(Choice(name), SHAPE._replace(dtype=torch.bfloat16), 1, 8)
    kv = feed_tokens(low_precision, [0], 0, [[1.0]])[0]
    assert (kv.k.dtype, kv.v.dtype) == (torch.bfloat16, torch.bfloat16)
