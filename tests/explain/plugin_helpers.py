"""Parts of another package, as a user may write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polyhead.nn.kv import KV, attention_mask, split_heads
from polyhead.nn.position.base import Position


class ScaleNorm(nn.Module):
    """g x / |x|."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        return self.gain * x / x.norm(dim=-1, keepdim=True)


class SineLayer(nn.Module):
    """A feed-forward layer with a sine."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        out: Tensor = self.second(self.first(x).sin())
        return out


class MeanAttention(nn.Module):
    """The mean of all values before, which reports its weights."""

    state = None

    def __init__(self, shape: Any, position: Position) -> None:
        super().__init__()
        self.v_proj = nn.Linear(shape.d_model, shape.d_model)
        self.position, self.causal, self.heads, self.width = (
            position,
            shape.causal,
            shape.n_heads,
            shape.head_dim,
        )
        self.weights_hooks: list[Any] = []

    def project_kv(self, x: Tensor, pos: Tensor | None) -> KV:
        v = split_heads(self.v_proj(x), self.width)
        return KV(v, v, None if pos is None else pos[:, None])

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Any = None,
        memory: Any = None,
        position: Any = None,
    ) -> Tensor:
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

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Any = None,
        memory: Any = None,
        position: Any = None,
    ) -> Tensor:
        return super().forward(x, pos, None, memory, position)


class ReversingPosition(Position):
    """Changes the sign of the heads of every second token."""

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        at = torch.arange(x.size(2)) if pos is None else pos[0]
        sign: Tensor = 1 - 2 * (at % 2)
        return x * sign[:, None]


class RampPosition(Position):
    """Adds its number to a token."""

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        at = torch.arange(x.size(1)) if pos is None else pos[0]
        return x + at[:, None] / 100
