"""Shared parts of attention: the four projections, possibly tied, and the norms of queries and keys."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.nn.kv import merge_heads, split_heads
from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.nn.position.base import Position
from polyhead.nn.shard_plan import ShardPlan, select_shard

Tie = Literal["none", "kv", "qk", "qkv"]
"""Which projections are tied: keys and values, queries and keys, or all three."""


Projections = Literal["all", "none"]
"""The linear maps: all four, or none, so that queries, keys and values are the input itself."""


Bias = bool | Literal["qkv", "o"]
"""Which projections have a bias: all four, none, all but the output, or the output only."""


QKNorm = bool | Literal["zero_centered", "unweighted", "all_heads", "layernorm", "per_head"]
"""The norm of queries and keys.

false: none; true: RMS norm of each head; zero_centered: the same with weights stored as their distance from
1; unweighted: without weights; all_heads: all heads of a token as one vector; layernorm: layer norm of each
head; per_head: layer norm without a bias, with per-head weights.
"""


QK_EPS = 1e-6
"""Default epsilon, added to the mean square or variance."""


class NoProjection(nn.Module):
    """The input itself, with the attributes by which the sizes of a projection are read."""

    bias = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        self.weight = torch.empty(width, 0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return x


class ShardedByHeads:
    """Mixin of the attentions with the four projections: tensor ranks shard them by key/value heads."""

    shard_plan = ShardPlan(
        colwise=("q_proj", "k_proj", "v_proj"),
        rowwise=("o_proj",),
        partial_grads=("q_norm", "k_norm"),
        parts=("position",),
    )
    reads_documents = True
    q_proj: nn.Linear
    k_proj: nn.Linear
    o_proj: nn.Linear
    head_dim: int
    v_head_dim: int
    causal: bool

    def find_shard_obstacle(self, size: int) -> str | None:
        """The number of query or key/value heads, if it is no multiple of ``size``; or no projections."""
        if not self.q_proj.weight.numel():
            return "attention with projections=none has no weights that ranks could share"
        for name, proj in (("query", self.q_proj), ("key/value", self.k_proj)):
            heads = len(proj.weight) // self.head_dim
            if heads % size:
                return f"{heads} {name} heads cannot be divided by {size}: tensor must divide their number"
        return None


class FullQKNorm(RMSNorm):
    """RMS norm of all heads of a token as one vector."""

    def find_shard_obstacle(self, size: int) -> str | None:
        """The reason: this norm reduces over all heads, so it cannot be sharded over tensor ranks."""
        return "qk_norm=all_heads takes the norm over the heads of all ranks"

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        return split_heads(super().forward(merge_heads(x), pos), x.size(-1))


class PerHeadLayerNorm(nn.Module):
    """Layer norm of each head with its own weights, without a bias."""

    def __init__(self, n_heads: int, head_dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.heads = nn.ParameterList(torch.ones(head_dim) for _ in range(n_heads))
        self.own_heads = slice(None)  # those that this rank computes

    shard_plan = ShardPlan(partial_grads=("heads",))

    def keep_shard(self, rank: int, size: int) -> None:
        """Apply the weights of the heads of a rank."""
        self.own_heads = select_shard(len(self.heads), rank, size)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        weight = torch.stack(list(self.heads))[self.own_heads, None]
        return torch.layer_norm(x, x.shape[-1:], eps=self.eps) * weight


def build_qk_norms(
    shape: AttentionShape, qk_norm: QKNorm, eps: float = QK_EPS
) -> tuple[nn.Module, nn.Module]:
    """Build the norms of the query heads and of the key heads."""
    if not qk_norm and eps != QK_EPS:
        raise UserError(f"qk_eps is {eps}, but queries and keys are not normalized: set qk_norm")
    if not qk_norm:
        return nn.Identity(), nn.Identity()
    q, k = (_build_norm(qk_norm, heads, shape.head_dim, eps) for heads in (shape.n_heads, shape.n_kv_heads))
    return q, k


def _build_norm(qk_norm: QKNorm, n_heads: int, head_dim: int, eps: float) -> nn.Module:
    if qk_norm == "all_heads":
        return FullQKNorm(n_heads * head_dim, eps=eps)
    if qk_norm == "per_head":
        return PerHeadLayerNorm(n_heads, head_dim, eps=eps)
    if qk_norm == "layernorm":
        return LayerNorm(head_dim, eps=eps)
    return RMSNorm(
        head_dim, eps=eps, zero_centered=qk_norm == "zero_centered", weight=qk_norm != "unweighted"
    )


def build_projections(
    shape: AttentionShape, tie: Tie, bias: Bias, projections: Projections
) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """Build the projections of queries, keys, values and output; a UserError for a tie of unequal widths."""
    q_width, k_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    v_width, kv_input = shape.n_kv_heads * shape.v_head_dim, shape.kv_width or shape.d_model
    if projections == "none":
        if tie != "none":
            raise UserError(f"tie={tie} shares projections, and projections=none has none: remove it")
        if not q_width == k_width == v_width == shape.d_model == kv_input:
            raise UserError(
                "projections=none splits the input into heads: n_kv_heads must be n_heads "
                f"({shape.n_heads}), and head_dim and v_head_dim d_model/n_heads "
                f"({shape.d_model / shape.n_heads:g}); keys and values have the width of queries"
            )
        inner_map: Any = NoProjection(q_width)
        outer_map: Any = NoProjection(q_width)
        return inner_map, inner_map, inner_map, outer_map
    if tie in ("qk", "qkv") and q_width != k_width:
        raise UserError(f"tie={tie} requires as many key heads as query heads: n_kv_heads={shape.n_heads}")
    if tie in ("qk", "qkv") and kv_input != shape.d_model:
        raise UserError(f"tie={tie} requires an encoder as wide as the decoder: d_model={shape.d_model}")
    if tie in ("kv", "qkv") and k_width != v_width:
        raise UserError(f"tie={tie} requires values as wide as keys: v_head_dim={shape.head_dim}")
    inner, outer = bias in (True, "qkv"), bias in (True, "o")
    q = nn.Linear(shape.d_model, q_width, bias=inner)
    k = q if tie in ("qk", "qkv") else nn.Linear(kv_input, k_width, bias=inner)
    v = k if tie in ("kv", "qkv") else nn.Linear(kv_input, v_width, bias=inner)
    return q, k, v, nn.Linear(shape.n_heads * shape.v_head_dim, shape.d_model, bias=outer)


def project_keys_values(x: Tensor, k_proj: nn.Module, v_proj: nn.Module) -> tuple[Tensor, Tensor]:
    """(B, S, C) -> (B, S, K * D), (B, S, K * Dv), computed once if they are tied."""
    k: Tensor = k_proj(x)
    return k, k if v_proj is k_proj else v_proj(x)


def reject_score_bias(attention: str, position: Position) -> None:
    """Raise a UserError for a position scheme with a score bias in an attention without scores."""
    if position.kind == "scores":
        raise UserError(
            f"attention {attention!r} has no scores to which a position bias (alibi, t5, shaw, "
            "disentangled) could be added: use position rope, sinusoidal, learned or none, or attention "
            "softmax"
        )
