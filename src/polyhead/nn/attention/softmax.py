"""Scaled dot-product attention with many heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.option_types import (
    DropoutRate,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from polyhead.core.registry import ATTENTION
from polyhead.nn.attention.projections import (
    QK_EPS,
    Bias,
    Projections,
    QKNorm,
    ShardedByHeads,
    Tie,
    build_projections,
    build_qk_norms,
)
from polyhead.nn.block_mask import HEAD_DIMS, attend_blocks, find_block_mask
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import KV, GatherKV, WeightsHook, Window, attend, attention_mask, merge_heads, split_heads
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions, Visibility


@ATTENTION.register("softmax")
class Attention(ShardedByHeads, nn.Module):
    """Multi-head attention: each query takes a mean of the values, weighted by the match of query and key.

    ``model.n_kv_heads`` is K: as many as heads is multi-head, 1 multi-query (Shazeer, 2019), a divisor
    between grouped (Ainslie et al., 2023). Cache and memory shrink by K / H; query heads that share a key
    fold into T, and keys are never repeated. With a window, N layers together reach N windows back; an
    encoder's window extends to both sides. A query without visible slots gives 0, not NaN.

    Equation: softmax(q_h k_gᵀ / √D + b) v_g,  g = ⌊h K / H⌋,  b the position's bias, -∞ where masked
    Paper: Vaswani et al., 2017, eq. 1
    When: the standard; smaller K where memory and time of decoding matter, qk_norm where training is unstable
    Recipe: model: {n_heads: 8, n_kv_heads: 2, attention: {name: softmax, qk_norm: true}}
    Options:
      scale: factor on q kᵀ; 1/√D if not given, 1/√(nD) where the position makes a score of n products
      window: tokens back that self-attention sees, its own included (Beltagy et al., 2020); default: no limit
      sink: with a window, number of first tokens of the row that stay visible (Xiao et al., 2023)
      softcap: c tanh(scores / c) bounds the scores by c (Gemma 2, 2024); none if not given
      qk_norm: RMS-normalise every query and key head before its position is applied (Henry et al., 2020);
        zero_centered: with weights stored as their distance from 1 (Gemma 3, 2025); unweighted: without
        weights (nanochat, 2025); all_heads: all heads of a token as one vector (OLMo 2, 2024); layernorm:
        layer norm of each head (Phi); per_head: layer norm without a bias, with per-head weights (Command R+)
      qk_eps: epsilon of qk_norm, added to the mean square or variance
      projections: none: queries, keys, values and output are not projected, q = k = v = x
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections, in all but that of the output (qkv, as in Qwen2), or in that alone
        (o, as in GPT-Neo)
      dropout: probability, on the attention weights
    """

    def __init__(
        self,
        shape: AttentionShape,
        position: Position,
        *,
        scale: PositiveFloat | None = None,
        window: PositiveInt | None = None,
        sink: NonNegativeInt = 0,
        softcap: PositiveFloat | None = None,
        qk_norm: QKNorm = False,
        qk_eps: NonNegativeFloat = QK_EPS,
        projections: Projections = "all",
        tie: Tie = "none",
        bias: Bias = True,
        dropout: DropoutRate = 0.0,
    ) -> None:
        super().__init__()
        if sink and window is None:
            raise UserError(
                f"sink is {sink}; it is the number of tokens seen beyond a window, so it requires a window"
            )
        self.head_dim, self.v_head_dim, self.causal = shape.head_dim, shape.v_head_dim, shape.causal
        if scale is None and position.n_products > 1:
            scale = (position.n_products * self.head_dim) ** -0.5
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.window = None if window is None else Window(window, sink)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = build_projections(shape, tie, bias, projections)
        self.q_norm, self.k_norm = build_qk_norms(shape, qk_norm, qk_eps)
        self.position = position
        self.weights_hooks: list[WeightsHook] = []
        self.gather_kv: GatherKV | None = None  # of rows whose tokens are sharded over ranks

    state = None  # the cache holds keys and values

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: KV | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over ``memory`` if given, else over x and the cache.

        ``position`` is the scheme prepared for this forward pass.
        """
        position = self.position if position is None else position
        q = position.rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), pos)
        kv = self.project_kv(x, pos, position) if memory is None else memory
        hooks: Sequence[WeightsHook] = self.weights_hooks
        if cache is not None:
            kv = cache.update(kv)
            hooks = hooks if cache.weights_hook is None else [*hooks, cache.weights_hook]
        masks = None if documents is None else documents.block_masks
        blocks = find_block_mask(masks, self.visibility_in_blocks()) if masks else None
        if blocks is not None:
            out = attend_blocks(q, kv, blocks, scale=self.scale, softcap=self.softcap)
        else:
            own_tokens_only = memory is None and cache is None
            window = self.window if memory is None else None
            mask = attention_mask(pos, kv, x.size(1), self.causal, window, own_tokens_only, documents)
            bias, value_bias = None, None
            if position.kind == "scores":
                bias = position.scores(q, kv, pos, self.scale, self.project_qk)
                value_bias = partial(position.values, kv=kv, pos=pos) if position.adds_values else None
            # softmax(q kᵀ scale + bias) v over the slots that the mask allows
            out = attend(
                q,
                kv,
                mask,
                bias,
                causal=self.causal,
                scale=self.scale,
                softcap=self.softcap,
                dropout=self.dropout if self.training else 0.0,
                value_bias=value_bias,
                hooks=hooks,
            )
        projected: Tensor = self.o_proj(merge_heads(out))
        return projected

    def visibility_in_blocks(self) -> Visibility | None:
        """Which keys a query sees, if attention can be computed in blocks; None if it needs all weights."""
        has_dropout = self.training and self.dropout > 0
        needs_weights = self.weights_hooks or self.position.kind == "scores" or has_dropout
        has_own_keys = self.gather_kv is None  # else there are more keys than queries
        fits = has_own_keys and self.head_dim in HEAD_DIMS and self.v_head_dim in HEAD_DIMS
        return Visibility(self.causal, *(self.window or ())) if fits and not needs_weights else None

    def project_kv(self, x: Tensor, pos: Tensor | None, position: Position | None = None) -> KV:
        """(B, S, C), (B, S) -> keys and values. Called once by cross-attention, on the encoder's output."""
        position = self.position if position is None else position
        k = self.k_proj(x)
        v = k if self.v_proj is self.k_proj else self.v_proj(x)
        k = position.rotate(self.k_norm(split_heads(k, self.head_dim)), pos)
        kv = KV(k, split_heads(v, self.v_head_dim), None if pos is None else pos[:, None])
        return kv if self.gather_kv is None else self.gather_kv(kv)

    def project_qk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of vectors of a position scheme, not of tokens: (R, C) -> (H, R, D), (K, R, D)."""
        q, k = (split_heads(proj(x[None]), self.head_dim) for proj in (self.q_proj, self.k_proj))
        return self.q_norm(q)[0], self.k_norm(k)[0]
