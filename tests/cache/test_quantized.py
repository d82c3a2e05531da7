import pytest
import torch
from tests.cache.cache_helpers import SHAPE

from polyhead.cache.quantized import dequantize_groups, quantize_groups
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.kv import KV


def quantize_list(numbers, bits):
    low, high = min(numbers), max(numbers)
    scale = (high - low) / (2**bits - 1) or 1.0
    return [low + scale * round((x - low) / scale) for x in numbers]


def quantize_row(x, bits, group, is_key):
    """(K, T, D) of one row: full groups quantized, keys by channel and values by token; the tail exact."""
    out = x.clone().double()
    for head in range(x.size(0)):
        for first in range(0, x.size(1) // group * group, group):
            tokens = out[head, first : first + group]
            for line in tokens.T if is_key else tokens:
                line.copy_(torch.tensor(quantize_list(line.tolist(), bits)))
    return out


class QuantizedHarness:
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
        padding = (pos < 0)[:, None, :, None]
        for depth, layer in enumerate(self.cache.layers):
            k, v = (size * torch.randn(len(rows), 2, pos.size(1), d) for d in (3, 5))
            kv = layer.update(KV(k.masked_fill(padding, torch.nan), v.masked_fill(padding, torch.nan)))
            assert kv.k.isfinite().all() and kv.v.isfinite().all()
            for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
                slots = kv.pos[i, 0].argsort()[(kv.pos[i, 0] < 0).sum() :]
                assert kv.pos[i, 0, slots].tolist() == list(range(old[i] + n))
                pairs = list(zip(self.rows[row][depth], (k, v), (kv.k, kv.v), strict=True))
                for is_key, (x, new, output) in zip((True, False), pairs, strict=True):
                    quantized_x = quantize_row(x, self.bits, self.group, is_key)
                    expected = torch.cat([quantized_x, new[i, :, :n].double()], 1)
                    actual = output[i][:, slots].double()
                    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * size)
                self.rows[row] = list(self.rows[row])
                self.rows[row][depth] = tuple(torch.cat([x, new[i, :, :n]], 1) for x, new, _ in pairs)


@pytest.mark.parametrize(("bits", "group"), [(8, 4), (4, 4), (4, 2), (8, 6)])
def test_full_groups_are_quantized_and_tails_exact(bits, group):
    torch.manual_seed(0)
    harness = QuantizedHarness(3, bits, group)
    for lengths in ([5, 1, 0], [1, 1, 1], [1, 1, 1], [1, 13, 2], [1, 1, 1]):
        harness.step([0, 1, 2], lengths)
    harness.step([2, 0], [3, 9])
    harness.cache.fork(1, 0)
    harness.rows[0] = list(harness.rows[1])
    harness.step([0, 1, 2], [1, 2, 1])
    harness.cache.select([2, 0, 0, 1])
    harness.rows = [list(harness.rows[i]) for i in (2, 0, 0, 1)]
    harness.step([0, 1, 2, 3], [1, 5, 1, 0])
    harness.cache.release(1)
    harness.rows[1] = [(k[:, :0], v[:, :0]) for k, v in harness.rows[1]]
    for _ in range(group + 1):
        harness.step([0, 1, 2, 3], [1, 1, 1, 1])


def test_early_scales_are_fixed_and_bytes_counted():
    torch.manual_seed(0)
    harness = QuantizedHarness(1, 8, 4)
    for size in (1e-3, 1.0, 1e4, 1e-3):
        for _ in range(4):
            harness.step([0], [1], size)
    layer = harness.cache.layers[0]
    scales = layer.k_scale[0].amax((0, 2, 3))
    assert (scales[1:3] / scales[:2] > 100).all(), scales
    first = dequantize_groups(layer.k, layer.k_scale, layer.k_zero, 8)[0, :, 0]
    assert (first - harness.rows[0][0][0][:, :4]).abs().max() < 1e-4
    torch.manual_seed(0)
    harness, token = QuantizedHarness(2, 4, 8), 2 * (3 + 5) * 4
    # numbers; scales and zeros of 3 channels and of 8 tokens
    group = 2 * (8 * (3 + 5) // 2 + 2 * (3 + 8) * 4)
    assert harness.cache.memory_usage()[:2] == (2 * 2 * 8 * token, 0)
    harness.step([0, 1], [17, 5])
    expected = 2 * 2 * (8 * token + 2 * group), 2 * (2 * group + 1 * token + 5 * token)
    assert harness.cache.memory_usage()[:2] == expected


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dim", [-1, -2])
def test_quantization_error_is_half_a_step(bits, dim):
    torch.manual_seed(1)
    x = torch.randn(2, 3, 6, 5) * 10 + 3
    x[0, 0] = 7.0  # no spread
    q, scale, zero = quantize_groups(x, bits, dim)
    assert q.dtype == torch.uint8 and q.numel() == x.numel() * bits // 8
    back = dequantize_groups(q, scale, zero, bits)
    assert ((back - x).abs() <= scale / 2 * 1.001).all() and torch.equal(back[0, 0], x[0, 0])
    twice = dequantize_groups(*quantize_groups(back, bits, dim), bits)
    torch.testing.assert_close(twice, back, rtol=0, atol=1e-5)
