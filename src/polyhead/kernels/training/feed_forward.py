"""Residuals with a feed-forward layer, plain or gated, in one function.

Kept for the backward pass are the input, the preactivations and the random bytes of dropout; the normed input
and the activations are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.kernels.training.blocks import BlockInput
from polyhead.kernels.training.conditions import find_norm, is_fusable, list_modules
from polyhead.kernels.training.elementwise import Activation, Drop, Norm
from polyhead.kernels.training.feed_forward_forms import (
    FeedForwardParts,
    feed_forward,
    feed_forward_gradient,
)
from polyhead.kernels.training.weights import WeightCopies, join_biases
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.residual import Residual


def fuse_feed_forward(
    copies: WeightCopies, residual: Residual, x: Tensor, layer: FeedForward, pos: Tensor | None = None
) -> Tensor | None:
    """x + dropout(FFN(N(x))) or N(x + dropout(FFN(x))): (B, T, C) -> (B, T, C)."""
    return _fuse(copies, residual, x, layer, [layer.up_proj])


def fuse_gated_feed_forward(
    copies: WeightCopies, residual: Residual, x: Tensor, layer: GatedFeedForward, pos: Tensor | None = None
) -> Tensor | None:
    """The same with a gate: one product computes the gate and the features that it scales."""
    return _fuse(copies, residual, x, layer, [layer.gate_proj, layer.up_proj])


def _fuse(
    copies: WeightCopies,
    residual: Residual,
    x: Tensor,
    layer: FeedForward | GatedFeedForward,
    inner_maps: list[nn.Linear],
) -> Tensor | None:
    norm, down = find_norm(residual), layer.down_proj
    maps = *inner_maps, down
    activation = Activation.of(layer.activation, is_gated=len(inner_maps) == 2)
    modules = (*list_modules(residual), layer, layer.dropout, *maps)
    has_form = norm is not None and activation is not None and all(type(m) is nn.Linear for m in maps)
    if not has_form or not is_fusable(x, *modules):
        return None
    assert norm is not None and activation is not None
    rows = x.numel() // x.size(-1)
    parts = FeedForwardParts(
        activation,
        Drop.draw(layer.dropout, (rows, down.in_features)),
        Drop.draw(residual.dropout, (rows, down.out_features), residual.scale),
        copies.get(*(linear.weight for linear in inner_maps)),
        copies.get(down.weight),
    )
    out: Tensor = _FeedForwardResidual.apply(
        parts,
        norm,
        residual.norm_first,
        join_biases(inner_maps),
        x,
        residual.norm.weight if norm.has_weight else None,
        getattr(residual.norm, "bias", None),
        *(weight for linear in maps for weight in (linear.weight, linear.bias)),
    )
    return out


class _FeedForwardResidual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        parts: FeedForwardParts,
        norm: Norm,
        norm_first: bool,
        inner_bias: Tensor | None,
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        *weights: Tensor | None,
    ) -> Tensor:
        rows = BlockInput.of(x, norm, norm_first, norm_weight, norm_bias, parts.dtype)
        out, hidden, stats = feed_forward(parts, rows, inner_bias, weights[-1])
        total = None
        if not norm_first:
            total = out
            out, stats = norm.forward(total, norm_weight, norm_bias, torch.float32)
        ctx.save_for_backward(
            *rows.list_tensors(), hidden, stats, total, parts.up, parts.down,
            parts.inner.bytes_, parts.outer.bytes_,
        )  # fmt: skip
        ctx.parts = parts.activation, parts.inner.without_bytes(), parts.outer.without_bytes()
        ctx.norm, ctx.widths = norm, [weight.size(0) for weight in weights[:-2:2] if weight is not None]
        ctx.has_bias = weights[1] is not None, weights[-1] is not None
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, hidden, stats, total, up, down, inner_bytes, outer_bytes = ctx.saved_tensors
        rows, widths, needs_weight = BlockInput(ctx.norm, *tensors), ctx.widths, ctx.needs_input_grad[7::2]
        activation, inner, outer = ctx.parts
        parts = FeedForwardParts(
            activation, inner.with_bytes(inner_bytes), outer.with_bytes(outer_bytes), up, down
        )
        d_total = grad.reshape(-1, grad.size(-1)).float().contiguous()
        d_last_norm: Sequence[Tensor | None] = ()
        if total is not None:
            d_total, *d_last_norm = rows.norm.backward(d_total, total, stats, rows.weight, None)
        needs_weights = any(needs_weight[:-1]), needs_weight[-1]
        found = feed_forward_gradient(parts, rows, d_total, hidden, stats, needs_weights)
        d_norm = d_last_norm or found.norm
        d_inner = [None] * len(widths) if found.up is None else found.up.split(widths)
        d_inner_biases = found.up_bias.split(widths) if ctx.has_bias[0] else [None] * len(widths)
        return (
            *[None] * 4,
            found.x.view(grad.shape),
            None if rows.weight is None else d_norm[0],
            None if rows.bias is None else d_norm[1],
            *(part for pair in zip(d_inner, d_inner_biases, strict=True) for part in pair),
            found.down,
            found.down_bias if ctx.has_bias[1] else None,
        )
