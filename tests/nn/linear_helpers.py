"""Shared by the tests of linear."""

from __future__ import annotations

import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.config.model import AttentionShape
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.cache import CacheShape
from polyhead.nn.position.base import Position

C, H, D = 12, 6, 4

PHI = {  # eq. 7; its plainest rival; all D^2 products, whose dot product is (x . y)^2
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp(min=0),
    "square": lambda x: (x[..., :, None] * x[..., None, :]).flatten(-2),
}


def layer(
    kind=LinearAttention,
    n_kv_heads=2,
    causal=False,
    position=Position,
    head_dim=D,
    v_head_dim=None,
    dtype=torch.double,
    **options,
):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(
        C, H, n_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, causal=causal
    )
    made = kind(shape, position(shape), **options).to(dtype)
    for p in made.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return made


def equal(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def state_cache(a, n_rows, layers=1):
    weight = a.k_proj.weight
    shape = CacheShape(layers, 0, 0, 0, weight.dtype, weight.device, (a.state,) * layers)
    return StateCache(shape, n_rows, 99)


def fed(a, x, widths, cache=None):
    """The outputs as decoding computes them, a few tokens at a time."""
    cache, out, done = cache or state_cache(a, len(x)), [], 0
    for width in widths:
        pos = torch.arange(done, done + width).expand(len(x), -1)
        cache.prepare_step(range(len(x)), pos)
        out.append(a(x[:, done : done + width], pos, cache.layers[0]))
        done += width
    assert done == x.size(1)
    return torch.cat(out, 1)
