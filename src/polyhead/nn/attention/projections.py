"""What kinds of attention share: the four projections, some of them tied, and what norms queries and keys."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.kv import merge_heads, split_heads
from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.nn.position.base import Position

Tie = Literal["none", "kv", "qk", "qkv"]
"""Which projections are one: keys and values, queries and keys, or all three."""


Bias = bool | Literal["qkv", "o"]
"""Which projections have one: all four, none, all but that of the output, or that of the output alone."""


QKNorm = bool | Literal["around_one", "plain", "whole", "layer", "each"]
"""What is normed: each head, the same by factors kept around one or by none, all heads of a token as one vector, or nothing;
each head by a layer norm, or by one without a bias whose factors are its own."""


QK_EPS = 1e-6
"""Added to the mean square or variance of what is normed, if nothing is said."""


class WholeNorm(RMSNorm):
    """RMS norm of all heads of a token as one vector."""

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        return split_heads(super().forward(merge_heads(x), pos), x.size(-1))


class EachNorm(nn.Module):
    """Layer norm of each head by factors of its own, without a bias."""

    def __init__(self, n_heads: int, head_dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.heads = nn.ParameterList(torch.ones(head_dim) for _ in range(n_heads))

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D)."""
        return torch.layer_norm(x, x.shape[-1:], eps=self.eps) * torch.stack(list(self.heads))[:, None]


def norms(shape: Shape, qk_norm: QKNorm, eps: float = QK_EPS) -> tuple[nn.Module, nn.Module]:
    """That of the heads of queries, and that of those of keys."""
    if not qk_norm and eps != QK_EPS:
        raise UserError(f"qk_eps is {eps}, and nothing norms queries and keys: give qk_norm too")
    if not qk_norm:
        return nn.Identity(), nn.Identity()
    q, k = (_norm(qk_norm, heads, shape.head_dim, eps) for heads in (shape.n_heads, shape.n_kv_heads))
    return q, k


def _norm(qk_norm: QKNorm, n_heads: int, head_dim: int, eps: float) -> nn.Module:
    if qk_norm == "whole":
        return WholeNorm(n_heads * head_dim, eps=eps)
    if qk_norm == "each":
        return EachNorm(n_heads, head_dim, eps=eps)
    if qk_norm == "layer":
        return LayerNorm(head_dim, eps=eps)
    return RMSNorm(head_dim, eps=eps, around_one=qk_norm == "around_one", weight=qk_norm != "plain")


def projections(shape: Shape, tie: Tie, bias: Bias) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """Those of queries, keys, values and the output; a tie that the widths do not allow is a UserError."""
    q_width, k_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    v_width = shape.n_kv_heads * shape.v_head_dim
    if tie in ("qk", "qkv") and q_width != k_width:
        raise UserError(f"tie={tie} wants as many key heads as query heads: n_kv_heads={shape.n_heads}")
    if tie in ("kv", "qkv") and k_width != v_width:
        raise UserError(f"tie={tie} wants values as wide as keys: v_head_dim={shape.head_dim}")
    inner, outer = bias in (True, "qkv"), bias in (True, "o")
    q = nn.Linear(shape.d_model, q_width, bias=inner)
    k = q if tie in ("qk", "qkv") else nn.Linear(shape.d_model, k_width, bias=inner)
    v = k if tie in ("kv", "qkv") else nn.Linear(shape.d_model, v_width, bias=inner)
    return q, k, v, nn.Linear(shape.n_heads * shape.v_head_dim, shape.d_model, bias=outer)


def keys_values(x: Tensor, k_proj: nn.Module, v_proj: nn.Module) -> tuple[Tensor, Tensor]:
    """(B, S, C) -> (B, S, K * D), (B, S, K * Dv), computed once where they are tied."""
    k: Tensor = k_proj(x)
    return k, k if v_proj is k_proj else v_proj(x)


def refuse_scores(attention: str, position: Position) -> None:
    """A position that adds to scores is a UserError in attention of this name, which makes none."""
    if position.acts_on == "scores":
        raise UserError(
            f"attention {attention!r} makes no scores that a bias of the position (alibi, t5, shaw, disentangled) could be "
            "added to: take position rope, sinusoidal, learned or none, or attention softmax"
        )
