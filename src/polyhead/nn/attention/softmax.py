"""Scaled dot-product attention with many heads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.cache.base import LayerCache, looked_at
from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.attention.projections import QK_EPS, Bias, QKNorm, Tie, keys_values, norms, projections
from polyhead.nn.kv import KV, Watcher, Window, attend, merge_heads, sight, split_heads
from polyhead.nn.position.base import Position
from polyhead.ranges import Above0, AtLeast0
from polyhead.registry import ATTENTION


@ATTENTION.register("softmax")
class Attention(nn.Module):
    """Multi-head attention: each query takes a mean of the values, weighted by how well the keys answer it.

    ``model.n_kv_heads`` is K: as many as heads is multi-head, 1 multi-query (Shazeer, 2019), a divisor between grouped
    (Ainslie et al., 2023). Cache and memory shrink by K / H; query heads that share a key fold into T, and no key is ever
    repeated. With a window, N layers together see N windows back; that of an encoder reaches to both sides. A query that
    sees nothing gives 0, not NaN.

    Equation: softmax(q_h k_gᵀ / √D + b) v_g,  g = ⌊h K / H⌋,  b the position's bias, -∞ where a query may not look
    Paper: Vaswani et al., 2017, eq. 1
    When: the one to beat; fewer K where memory and time of decoding count, qk_norm where training is unstable
    Recipe: model: {n_heads: 8, n_kv_heads: 2, attention: {name: softmax, qk_norm: true}}
    Options:
      scale: factor on q kᵀ; 1/√D if not given, 1/√(nD) where the position makes a score of n products
      window: tokens back that self-attention sees, itself included (Beltagy et al., 2020); no limit if not given
      sink: with a window, so many first tokens of the row are seen all the same (Xiao et al., 2023)
      softcap: c tanh(scores / c) bounds the scores by c (Gemma 2, 2024); none if not given
      qk_norm: RMS-normalise every query and key head before its position is applied (Henry et al., 2020); around_one: by
        factors kept as their distance from 1 (Gemma 3, 2025); plain: by none (nanochat, 2025); whole: all heads of a token as one vector (OLMo 2, 2024);
        layer: layer norm of each head (Phi); each: layer norm without a bias, by factors of each head's own (Command R+)
      qk_eps: added there to the mean square or variance
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections, in all but that of the output (qkv, as in Qwen2), or in that alone (o, as in
        GPT-Neo)
      dropout: probability, on the attention weights
    """

    def __init__(
        self,
        shape: Shape,
        position: Position,
        *,
        scale: Above0 | None = None,
        window: int | None = None,
        sink: int = 0,
        softcap: float | None = None,
        qk_norm: QKNorm = False,
        qk_eps: AtLeast0 = QK_EPS,
        tie: Tie = "none",
        bias: Bias = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise UserError(f"window is {window}; it counts the query itself, so 1 is the least")
        if sink < 0 or (sink and window is None):
            raise UserError(
                f"sink is {sink}; it counts tokens seen from beyond a window, so give a window too"
            )
        if softcap is not None and softcap <= 0:
            raise UserError(f"softcap bounds the scores, so it is above 0, not {softcap}")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout of attention is a probability from 0 to below 1, not {dropout}")
        self.head_dim, self.v_head_dim, self.causal = shape.head_dim, shape.v_head_dim, shape.causal
        if scale is None and position.products > 1:
            scale = (position.products * self.head_dim) ** -0.5
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.window = None if window is None else Window(window, sink)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections(shape, tie, bias)
        self.q_norm, self.k_norm = norms(shape, qk_norm, qk_eps)
        self.position = position
        self.watchers: list[Watcher] = []

    state = None  # it remembers keys and values

    def remember(self, x: Tensor, pos: Tensor | None) -> KV:
        """(B, S, C), (B, S) -> keys and values. Cross-attention does this once, on the encoder's output."""
        return self.keys(*keys_values(x, self.k_proj, self.v_proj), pos)

    def read(self, x: Tensor, pos: Tensor | None, memory: KV | None) -> tuple[Tensor, KV]:
        """Queries (B, H, T, D) of x, and the keys and values of memory, or of x where there is none."""
        return self.queries(self.q_proj(x), pos), self.remember(x, pos) if memory is None else memory

    def queries(self, q: Tensor, pos: Tensor | None) -> Tensor:
        """(B, T, H * D), (B, T) -> (B, H, T, D)."""
        return self.position.rotate(self.q_norm(split_heads(q, self.head_dim)), pos)

    def keys(self, k: Tensor, v: Tensor, pos: Tensor | None) -> KV:
        """(B, S, K * D), (B, S, K * Dv), (B, S) -> keys and values."""
        k = self.position.rotate(self.k_norm(split_heads(k, self.head_dim)), pos)
        return KV(k, split_heads(v, self.v_head_dim), None if pos is None else pos[:, None])

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of vectors that are no tokens: (R, C) -> (H, R, D), (K, R, D)."""
        q, k = (split_heads(proj(x[None]), self.head_dim) for proj in (self.q_proj, self.k_proj))
        return self.q_norm(q)[0], self.k_norm(k)[0]

    def forward(
        self, x: Tensor, pos: Tensor | None = None, cache: LayerCache | None = None, memory: KV | None = None
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over memory if there is one, else over x and what cache holds."""
        q, kv = self.read(x, pos, memory)
        alone = memory is None and cache is None
        kv, watch = looked_at(kv, cache, self.watchers)
        window = self.window if memory is None else None
        mask = sight(pos, kv, x.size(1), self.causal, window, alone=alone)
        projected: Tensor = self.o_proj(self.mean(q, kv, mask, pos, watch))
        return projected

    def mean(
        self, q: Tensor, kv: KV, mask: Tensor | None, pos: Tensor | None, watch: Sequence[Watcher]
    ) -> Tensor:
        """What queries (B, H, T, D) at pos (B, T) take of the values that mask shows: (B, T, H * Dv)."""
        out = attend(
            q,
            kv,
            mask,
            self.position.scores(q, kv, pos, self.scale, self.projected),
            causal=self.causal,
            scale=self.scale,
            softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
            values=(lambda x: self.position.values(x, kv, pos)) if self.position.adds_values else None,
            watch=watch,
        )
        return merge_heads(out)
