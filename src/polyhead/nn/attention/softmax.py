"""Scaled dot-product attention with many heads."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Watcher, attend, merge_heads, sight, split_heads
from polyhead.nn.norm import RMSNorm
from polyhead.nn.position.base import Position
from polyhead.registry import ATTENTION


@ATTENTION.register("softmax")
class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017); fewer key/value heads make it grouped (Ainslie et al., 2023)
    or multi-query (Shazeer, 2019): query head h reads key/value head h // (n_heads / n_kv_heads).

    ``scale`` multiplies q k^T, 1/sqrt(head_dim) if not given; ``window`` limits how far back a query sees,
    itself included; ``qk_norm`` normalises every query and key head (Henry et al., 2020).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        position: Position,
        causal: bool,
        *,
        scale: float | None = None,
        window: int | None = None,
        qk_norm: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise UserError(f"window is {window}; it counts the query itself, so 1 is the least")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout of attention is a probability from 0 to below 1, not {dropout}")
        self.head_dim = d_model // n_heads
        self.causal, self.scale, self.window, self.dropout = causal, scale, window, dropout
        self.q_proj = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(n_heads * self.head_dim, d_model, bias=bias)
        self.q_norm, self.k_norm = (RMSNorm(self.head_dim) if qk_norm else nn.Identity() for _ in range(2))
        self.position = position
        self.watchers: list[Watcher] = []

    def remember(self, x: Tensor, pos: Tensor | None) -> KV:
        """(B, S, C), (B, S) -> keys and values. Cross-attention does this once, on the encoder's output."""
        k = self.k_norm(split_heads(self.k_proj(x), self.head_dim))
        v = split_heads(self.v_proj(x), self.head_dim)
        return KV(self.position.rotate(k, pos), v, None if pos is None else pos[:, None])

    def forward(
        self, x: Tensor, pos: Tensor | None = None, cache: LayerCache | None = None, memory: KV | None = None
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over memory if there is one, else over x and what cache holds."""
        q = self.position.rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), pos)
        kv = self.remember(x, pos) if memory is None else memory
        watch = list(self.watchers)
        if cache is not None:
            kv = cache.update(kv)
            watch += [cache.watcher] if cache.watcher else []
        out = attend(
            q,
            kv,
            sight(pos, kv, x.size(1), self.causal, self.window if memory is None else None),
            self.position.bias(pos, kv.pos),
            causal=self.causal,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            watch=watch,
        )
        projected: Tensor = self.o_proj(merge_heads(out))
        return projected
