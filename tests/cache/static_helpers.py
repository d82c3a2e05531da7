"""Shared by the tests of static."""

import torch

from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV

SHAPE = CacheShape(
    n_layers=2, n_kv_heads=2, head_dim=3, v_dim=5, dtype=torch.float32, device=torch.device("cpu")
)

MAX_LEN = 40


def build(n_rows, max_len=MAX_LEN, **options):
    return CACHE.build(Choice("static", **options), SHAPE, n_rows, max_len)


def written(layer, stamp, pos):
    """Keys and values of a step that tell where they come from: layer, stamp (B, T) and position."""
    k = stamp[:, None, :, None] + 1000.0 * layer + torch.arange(6.0).view(1, 2, 1, 3) / 10
    v = -stamp[:, None, :, None] - 1000.0 * layer - torch.arange(10.0).view(1, 2, 1, 5) / 100
    return KV(k, v, pos[:, None])


def feed(cache, rows, pos, stamp):
    """One step; what each layer gives back."""
    cache.prepare_step(rows, pos)
    return [layer.update(written(i, stamp, pos)) for i, layer in enumerate(cache.layers)]


def held(kvs, row):
    """What a row may see: {position: stamp}, the same in every layer, keys and values agreeing."""
    seen = []
    for i, kv in enumerate(kvs):
        where = kv.pos[row, 0]
        slots = (where >= 0).nonzero()[:, 0]
        assert len(set(where[slots].tolist())) == len(slots)
        k, v = kv.k[row, 0, slots, 0] - 1000 * i, -kv.v[row, 0, slots, 0] - 1000 * i
        torch.testing.assert_close(k, v)
        seen.append(dict(zip(where[slots].tolist(), k.round().int().tolist(), strict=True)))
    assert seen[0] == seen[1]
    return seen[0]
