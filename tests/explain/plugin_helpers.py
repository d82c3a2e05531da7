import torch
from torch import nn

from polyhead.nn.kv import KV, attention_mask, split_heads
from polyhead.nn.position.base import Position


class ScaleNorm(nn.Module):
    """g x / |x|."""

    def __init__(self, d_model):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x, pos=None):
        return self.gain * x / x.norm(dim=-1, keepdim=True)


class SineLayer(nn.Module):
    """A feed-forward layer with a sine."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.first, self.second = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x, pos=None):
        return self.second(self.first(x).sin())


class MeanAttention(nn.Module):
    """The mean of all values before, which reports its weights."""

    state = None

    def __init__(self, shape, position):
        super().__init__()
        self.v_proj = nn.Linear(shape.d_model, shape.d_model)
        self.position, self.causal = position, shape.causal
        self.heads, self.width = shape.n_heads, shape.head_dim
        self.weights_hooks = []

    def project_kv(self, x, pos):
        v = split_heads(self.v_proj(x), self.width)
        return KV(v, v, None if pos is None else pos[:, None])

    def forward(self, x, pos=None, cache=None, memory=None, position=None):
        kv = self.project_kv(x, pos) if memory is None else memory
        kv = kv if cache is None else cache.update(kv)
        mask = attention_mask(pos, kv, x.size(1), self.causal)
        weights = torch.ones(len(x), self.heads, x.size(1), kv.v.size(2))
        weights = weights if mask is None else weights * mask
        weights = weights.tril() if mask is None and self.causal else weights
        weights = weights / weights.sum(-1, keepdim=True)
        own_hook = getattr(cache, "weights_hook", None)
        for hook in [*self.weights_hooks, *([own_hook] if own_hook else [])]:
            hook(weights)
        return (weights @ kv.v).transpose(1, 2).flatten(2)


class ForgetfulAttention(MeanAttention):
    """The same without a cache, so that decoding goes wrong."""

    def forward(self, x, pos=None, cache=None, memory=None, position=None):
        return super().forward(x, pos, None, memory, position)


class ReversingPosition(Position):
    """Changes the sign of the heads of every second token."""

    def rotate(self, x, pos):
        at = torch.arange(x.size(2)) if pos is None else pos[0]
        sign = 1 - 2 * (at % 2)
        return x * sign[:, None]


class RampPosition(Position):
    """Adds its number to a token."""

    def embed(self, x, pos):
        at = torch.arange(x.size(1)) if pos is None else pos[0]
        return x + at[:, None] / 100
