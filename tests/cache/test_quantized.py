"""The quantized cache against the equation, number by number."""

from __future__ import annotations

import pytest
import torch

from polyhead.cache.quantized import dequantize_groups, quantize_groups
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

SHAPE = CacheShape(2, 2, 3, 5, torch.float32, torch.device("cpu"))


def rounded(numbers, bits):
    """A list of numbers that share a scale."""
    low, high = min(numbers), max(numbers)
    scale = (high - low) / (2**bits - 1) or 1.0
    return [low + scale * round((x - low) / scale) for x in numbers]


def by_hand(x, bits, group, is_key):
    """(K, T, D) of one row: what is given back of whole groups; the rest as it is."""
    out = x.clone().double()
    for head in range(x.size(0)):
        for first in range(0, x.size(1) // group * group, group):
            some = x[head, first : first + group].double().tolist()
            for i in range(x.size(2) if is_key else group):
                if is_key:
                    for t, value in enumerate(rounded([token[i] for token in some], bits)):
                        out[head, first + t, i] = value
                else:
                    out[head, first + i] = torch.tensor(rounded(some[i], bits))
    return out


class Fed:
    """The cache, and beside it all that each row was given: [layer] of (k, v), (K, T, D)."""

    def __init__(self, n_rows, bits, group):
        self.cache = CACHE.build(Choice("quantized", bits=bits, group=group), SHAPE, n_rows, 99)
        self.bits, self.group = bits, group
        self.rows = [[(torch.zeros(2, 0, 3), torch.zeros(2, 0, 5)) for _ in range(2)] for _ in range(n_rows)]

    def step(self, rows, lengths, size=1.0):
        pos = torch.full((len(rows), max(lengths)), -1)
        old = [self.rows[row][0][0].size(1) for row in rows]
        for i, n in enumerate(lengths):
            pos[i, :n] = torch.arange(old[i], old[i] + n)
        self.cache.prepare_step(rows, pos)
        poison = (pos < 0)[:, None, :, None]
        for depth, layer in enumerate(self.cache.layers):
            k, v = (size * torch.randn(len(rows), 2, pos.size(1), d) for d in (3, 5))
            kv = layer.update(KV(k.masked_fill(poison, torch.nan), v.masked_fill(poison, torch.nan)))
            assert kv.k.isfinite().all()
            assert kv.v.isfinite().all()
            for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
                slots = kv.pos[i, 0].argsort()[(kv.pos[i, 0] < 0).sum() :]
                assert kv.pos[i, 0, slots].tolist() == list(range(old[i] + n))
                both = self.rows[row][depth]
                for x, new, given, is_key in zip(both, (k, v), (kv.k, kv.v), (True, False), strict=True):
                    wanted = torch.cat([by_hand(x, self.bits, self.group, is_key), new[i, :, :n].double()], 1)
                    torch.testing.assert_close(
                        given[i][:, slots].double(), wanted, rtol=1e-5, atol=1e-5 * size
                    )
                fed = zip(both, (k, v), strict=True)
                self.rows[row] = list(self.rows[row])
                self.rows[row][depth] = tuple(torch.cat([x, new[i, :, :n]], 1) for x, new in fed)


@pytest.mark.parametrize(("bits", "group"), [(8, 4), (4, 4), (4, 2), (8, 6)])
def test_whole_groups_are_rounded_by_the_equation_and_the_newest_tokens_are_as_they_came(bits, group):
    torch.manual_seed(0)
    fed = Fed(3, bits, group)
    for lengths in ([5, 1, 0], [1, 1, 1], [1, 1, 1], [1, 13, 2], [1, 1, 1]):
        fed.step([0, 1, 2], lengths)
    fed.step([2, 0], [3, 9])
    fed.cache.fork(1, 0)
    fed.rows[0] = list(fed.rows[1])
    fed.step([0, 1, 2], [1, 2, 1])
    fed.cache.select([2, 0, 0, 1])
    fed.rows = [list(fed.rows[i]) for i in (2, 0, 0, 1)]
    fed.step([0, 1, 2, 3], [1, 5, 1, 0])
    fed.cache.release(1)
    fed.rows[1] = [(k[:, :0], v[:, :0]) for k, v in fed.rows[1]]
    for _ in range(group + 1):
        fed.step([0, 1, 2, 3], [1, 1, 1, 1])


def test_scales_follow_what_comes_later_and_early_tokens_keep_theirs():
    torch.manual_seed(0)
    fed = Fed(1, 8, 4)
    for size in (1e-3, 1.0, 1e4, 1e-3):
        for _ in range(4):
            fed.step([0], [1], size)
    layer = fed.cache.layers[0]
    spread = layer.k_scale[0].amax((0, 2, 3))
    assert (spread[1:3] / spread[:2] > 100).all(), spread
    first, x = dequantize_groups(layer.k, layer.k_scale, layer.k_zero, 8)[0, :, 0], fed.rows[0][0][0][:, :4]
    assert (first - x).abs().max() < 1e-4


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dim", [-1, -2])
def test_packing_is_wrong_by_half_a_scale_at_most_and_packing_again_changes_nothing(bits, dim):
    torch.manual_seed(1)
    x = torch.randn(2, 3, 6, 5) * 10 + 3
    x[0, 0] = 7.0  # all alike
    q, scale, zero = quantize_groups(x, bits, dim)
    assert q.dtype == torch.uint8
    assert q.numel() == x.numel() * bits // 8
    back = dequantize_groups(q, scale, zero, bits)
    assert ((back - x).abs() <= scale / 2 * 1.001).all()
    assert torch.equal(back[0, 0], x[0, 0])
    close = dequantize_groups(*quantize_groups(back, bits, dim), bits)
    torch.testing.assert_close(close, back, rtol=0, atol=1e-5)


def test_bytes_are_those_of_groups_and_tails():
    fed = Fed(2, 4, 8)
    torch.manual_seed(0)
    token = 2 * (3 + 5) * 4
    # numbers; scales and zeros of 3 channels and of 8 tokens
    packed = 2 * (8 * (3 + 5) // 2 + 2 * (3 + 8) * 4)
    assert fed.cache.memory_usage()[:2] == (2 * 2 * 8 * token, 0)
    fed.step([0, 1], [17, 5])
    assert fed.cache.memory_usage()[:2] == (
        2 * 2 * (8 * token + 2 * packed),
        2 * (2 * packed + 1 * token + 5 * token),
    )


def test_a_group_is_even():
    with pytest.raises(UserError, match="group is 3; it must be even, since two numbers can share a byte"):
        CACHE.build(Choice("quantized", group=3), SHAPE, 1, 9)
