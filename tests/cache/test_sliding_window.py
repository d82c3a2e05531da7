"""The window cache against dictionaries of slots, and against lists of all tokens."""

from __future__ import annotations

import pytest
import torch

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, Window

SHAPE = CacheShape(2, 2, 3, 5, torch.float32, torch.device("cpu"))


def build(n_rows, shape=SHAPE, max_len=99, **options):
    return CACHE.build(Choice("window", **options), shape, n_rows, max_len)


def stamped(pos, stamp):
    """Keys and values that say which token they are, the padding not a number."""
    x = stamp.masked_fill(pos < 0, torch.nan)[:, None, :, None]
    return KV(x + torch.zeros(1, 2, 1, 3), -x + torch.zeros(1, 2, 1, 5))


@pytest.mark.acceptance("C6")
@pytest.mark.parametrize(("window", "sink"), [(1, 0), (4, 0), (3, 2), (5, 1)])
def test_each_query_sees_the_sink_and_the_newest_tokens_and_slots_are_those_of_the_equation(window, sink):
    """Rows of 4 windows and more, in steps of all widths; a token's stamp is 100 * row + position."""
    cache, lengths = build(3, window=window, sink=sink), [0, 0, 0]
    steps = [[1, 1, 1], [2, 0, 1], [7, 3, 1], [1, 1, 0], [1, 1, 1], [9, 2, 4], [0, 1, 1], [1, 13, 2]]
    for new in steps:
        pos = torch.full((3, max(new)), -1)
        for row, n in enumerate(new):
            pos[row, :n] = torch.arange(lengths[row], lengths[row] + n)
            lengths[row] += n
        cache.prepare_step(range(3), pos)
        stamp = 100.0 * torch.arange(3)[:, None] + pos
        for layer in cache.layers:
            kv = layer.update(stamped(pos, stamp))
            assert kv.k.isfinite().all()
            assert kv.v.isfinite().all()
            for row, n in enumerate(new):
                for t, q in enumerate(pos[row, :n].tolist()):
                    shown = kv.mask[row, 0, t].nonzero()[:, 0]
                    wanted = [p for p in range(q + 1) if p < sink or q - p < window]
                    assert sorted(kv.pos[row, 0, shown].tolist()) == wanted
                    assert torch.equal(kv.k[row, 1, shown, 2], 100.0 * row + kv.pos[row, 0, shown])
                    assert torch.equal(kv.v[row, 0, shown, 4], -100.0 * row - kv.pos[row, 0, shown])
        for row, length in enumerate(lengths):
            slots = [-1] * (sink + window)
            for p in range(length):
                slots[p if p < sink else sink + (p - sink) % window] = p
            assert cache.pos[row].tolist() == slots
            held = torch.tensor(slots) >= 0
            for layer in cache.layers:
                assert torch.equal(layer.k[row, 0, held, 0], 100.0 * row + torch.tensor(slots)[held])
    assert min(lengths) >= 4 * 2 and max(lengths) >= 4 * (window + sink) - 8


def test_it_needs_no_more_than_its_slots():
    cache = build(2, window=6, sink=2)
    bytes_a_slot = 8 + 2 * 2 * (3 + 5) * 4
    assert cache.nbytes == 2 * 8 * bytes_a_slot
    cache.prepare_step([0, 1], torch.arange(30).expand(2, 30))
    for layer in cache.layers:
        layer.update(stamped(torch.zeros(2, 30), torch.zeros(2, 30)))
    assert cache.memory_usage() == (2 * 8 * bytes_a_slot,) * 3 + (0,)
    cache.release(1)
    assert cache.memory_usage().used_bytes == 8 * bytes_a_slot
    assert build(1, window=50, max_len=7).pos.size(1) == 7, "no more slots than there are positions"


def test_the_models_own_window_may_be_smaller_but_not_larger():
    own = SHAPE._replace(windows=(None, Window(6, 1)))
    build(1, own, window=6, sink=1)
    build(1, own, window=7, sink=2)
    said = "has a window of 6 and a sink of 1: set at least window=6, sink=1"
    for options in ({"window": 5, "sink": 1}, {"window": 9, "sink": 0}):
        with pytest.raises(UserError, match=said):
            build(1, own, **options)
    for options in ({"window": 0}, {"sink": -1}):
        with pytest.raises(UserError, match="expected at least 1 and at least 0"):
            build(1, **options)
