import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.config.model import AttentionShape
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.cache import CacheShape
from polyhead.nn.position.base import Position

C, H, D = 12, 6, 4

PHI = {  # Katharopoulos et al., 2020, eq. 7; relu; all D^2 products, whose dot product is (x . y)^2
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp(min=0),
    "square": lambda x: (x[..., :, None] * x[..., None, :]).flatten(-2),
}


def make_attention(kind=LinearAttention, n_kv_heads=2, causal=False, position=Position, **options):
    torch.manual_seed(0)
    dtype, sizes = options.pop("dtype", torch.double), {"head_dim": D, "v_head_dim": None}
    sizes = {name: options.pop(name, size) for name, size in sizes.items()}
    shape = AttentionShape.from_sizes(C, H, n_kv_heads, causal=causal, **sizes)
    attention = kind(shape, position(shape), **options).to(dtype)
    for p in attention.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return attention


def draw(*shape):
    return torch.randn(*shape, C, dtype=torch.double)


def assert_close(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def make_state_cache(attention, n_rows, layers=1):
    weight = attention.k_proj.weight
    shape = CacheShape(layers, 0, 0, 0, weight.dtype, weight.device, (attention.state,) * layers)
    return StateCache(shape, n_rows, 99)


def decode_in_steps(attention, x, widths, cache=None):
    cache, outputs, start = cache or make_state_cache(attention, len(x)), [], 0
    for width in widths:
        pos = torch.arange(start, start + width).expand(len(x), -1)
        cache.prepare_step(range(len(x)), pos)
        outputs.append(attention(x[:, start : start + width], pos, cache.layers[0]))
        start += width
    assert start == x.size(1)
    return torch.cat(outputs, 1)
