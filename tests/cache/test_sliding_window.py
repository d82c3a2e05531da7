import pytest
import torch
from tests.cache.cache_helpers import SHAPE

from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV, Window


def build(n_rows, shape=SHAPE, max_len=99, **options):
    return CACHE.build(Choice("window", **options), shape, n_rows, max_len)


def stamped_kv(pos, stamp):
    x = stamp.masked_fill(pos < 0, torch.nan)[:, None, :, None]
    return KV(x + torch.zeros(1, 2, 1, 3), -x + torch.zeros(1, 2, 1, 5))


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize(("window", "sink"), [(1, 0), (4, 0), (3, 2), (5, 1)])
def test_queries_see_sink_and_window(window, sink):
    """Rows of 4 windows and more, in steps of all widths; a token's stamp is 100 * row + position."""
    cache, lengths = build(3, window=window, sink=sink), [0, 0, 0]
    for new in ([1, 1, 1], [2, 0, 1], [7, 3, 1], [1, 1, 0], [1, 1, 1], [9, 2, 4], [0, 1, 1], [1, 13, 2]):
        pos = torch.full((3, max(new)), -1)
        for row, n in enumerate(new):
            pos[row, :n] = torch.arange(lengths[row], lengths[row] + n)
            lengths[row] += n
        cache.prepare_step(range(3), pos)
        for layer in cache.layers:
            kv = layer.update(stamped_kv(pos, 100.0 * torch.arange(3)[:, None] + pos))
            assert kv.k.isfinite().all() and kv.v.isfinite().all()
            for row, t in (pos >= 0).nonzero().tolist():
                q, slots = int(pos[row, t]), kv.mask[row, 0, t].nonzero()[:, 0]
                positions = kv.pos[row, 0, slots]
                assert sorted(positions.tolist()) == [p for p in range(q + 1) if p < sink or q - p < window]
                assert torch.equal(kv.k[row, 1, slots, 2], 100.0 * row + positions)
                assert torch.equal(kv.v[row, 0, slots, 4], -100.0 * row - positions)
        for row, length in enumerate(lengths):
            slots = [-1] * (sink + window)
            for p in range(length):
                slots[p if p < sink else sink + (p - sink) % window] = p
            assert cache.pos[row].tolist() == slots
            is_used = torch.tensor(slots) >= 0
            for layer in cache.layers:
                assert torch.equal(layer.k[row, 0, is_used, 0], 100.0 * row + torch.tensor(slots)[is_used])
    assert min(lengths) >= 4 * 2 and max(lengths) >= 4 * (window + sink) - 8


def test_memory_is_that_of_the_slots():
    cache = build(2, window=6, sink=2)
    slot = 8 + 2 * 2 * (3 + 5) * 4
    assert cache.nbytes == 2 * 8 * slot
    cache.prepare_step([0, 1], torch.arange(30).expand(2, 30))
    for layer in cache.layers:
        layer.update(stamped_kv(torch.zeros(2, 30), torch.zeros(2, 30)))
    assert cache.memory_usage() == (2 * 8 * slot,) * 3 + (0,)
    cache.release(1)
    assert cache.memory_usage().used_bytes == 8 * slot
    for options in ({"window": 6, "sink": 1}, {"window": 7, "sink": 2}):  # cover the window of the model
        build(1, SHAPE._replace(windows=(None, Window(6, 1))), **options)
    assert build(1, window=50, max_len=7).pos.size(1) == 7, "no more slots than there are positions"
