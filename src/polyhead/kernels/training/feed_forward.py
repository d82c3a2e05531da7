"""Residuals with a feed-forward layer, plain or gated, in one function.

Kept for the backward pass are the input, the preactivations and the random bytes of dropout; the normed input
and the activations are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.kernels.training.conditions import find_norm, is_fusable, list_modules
from polyhead.kernels.training.elementwise import Activation, Drop, Norm
from polyhead.kernels.training.epilogues import linear_activation, linear_residual
from polyhead.kernels.training.products import grad_input, grad_weight
from polyhead.kernels.training.weights import WeightCopies
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.precision import product_dtype
from polyhead.nn.residual import Residual


class _Parts(NamedTuple):
    """What the function computes with, besides tensors."""

    norm: Norm
    norm_first: bool
    activation: Activation
    inner: Drop  # of the activations
    outer: Drop  # of the output
    dtype: torch.dtype  # of the products


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
    parts = _Parts(
        norm,
        residual.norm_first,
        activation,
        Drop.draw(layer.dropout, (rows, down.in_features)),
        Drop.draw(residual.dropout, (rows, down.out_features), residual.scale),
        product_dtype(x),
    )
    out: Tensor = _FeedForwardResidual.apply(
        parts,
        copies.get(*(linear.weight for linear in inner_maps)),
        copies.get(down.weight),
        _join_biases(inner_maps),
        x,
        residual.norm.weight if norm.has_weight else None,
        getattr(residual.norm, "bias", None),
        *(weight for linear in maps for weight in (linear.weight, linear.bias)),
    )
    return out


def _join_biases(maps: Sequence[nn.Linear]) -> Tensor | None:
    """The biases of maps that are one product, in fp32, without gradient."""
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    return torch.cat(biases) if len(biases) > 1 else biases[0] if biases else None


class _FeedForwardResidual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        parts: _Parts,
        inner_weight: Tensor,
        outer_weight: Tensor,
        inner_bias: Tensor | None,
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        *weights: Tensor | None,
    ) -> Tensor:
        norm, activation, inner, outer = parts.norm, parts.activation, parts.inner, parts.outer
        rows = x.reshape(-1, x.size(-1)).contiguous()
        if parts.norm_first:
            h, stats = norm.forward(rows, norm_weight, norm_bias, parts.dtype)
            kept = rows
        else:
            h = kept = rows.to(parts.dtype)
        hidden, active = linear_activation(h, inner_weight, inner_bias, activation, inner)
        out = linear_residual(active, outer_weight, weights[-1], rows, outer)
        total = None
        if not parts.norm_first:
            total = out
            out, stats = norm.forward(total, norm_weight, norm_bias, torch.float32)
        ctx.save_for_backward(
            kept, stats, total, hidden, inner_weight, outer_weight, norm_weight, norm_bias,
            inner.bytes_, outer.bytes_,
        )  # fmt: skip
        ctx.parts = parts._replace(inner=inner.without_bytes(), outer=outer.without_bytes())
        ctx.widths = [weight.size(0) for weight in weights[:-2:2] if weight is not None]
        ctx.has_bias = weights[1] is not None, weights[-1] is not None
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            kept, stats, total, hidden, inner_weight, outer_weight, norm_weight, norm_bias,
            inner_bytes, outer_bytes,
        ) = ctx.saved_tensors  # fmt: skip
        parts, norm = ctx.parts, ctx.parts.norm
        needs_weight = ctx.needs_input_grad[7::2]
        rows = grad.reshape(-1, grad.size(-1)).float().contiguous()
        if total is not None:
            rows, *d_norm = norm.backward(rows, total, stats, norm_weight, None)
        d_out, d_outer_bias = parts.outer.with_bytes(outer_bytes).backward(rows, parts.dtype)
        active, d_hidden, d_inner_bias = parts.activation.backward(
            grad_input(d_out, outer_weight), hidden, parts.inner.with_bytes(inner_bytes)
        )
        d_outer_weight = grad_weight(d_out, active) if needs_weight[-1] else None
        del active, d_out
        d_h = grad_input(d_hidden, inner_weight)
        if total is None:
            h, _ = norm.forward(kept, norm_weight, norm_bias, parts.dtype)
            dx, *d_norm = norm.backward(d_h, kept, stats, norm_weight, rows)
        else:
            h, dx = kept, Drop(None)(rows, d_h, None)
        d_inner = [None] * len(ctx.widths)
        if any(needs_weight[:-1]):
            d_inner = list(grad_weight(d_hidden, h).split(ctx.widths))
        d_inner_biases = d_inner_bias.split(ctx.widths) if ctx.has_bias[0] else [None] * len(ctx.widths)
        return (
            *[None] * 4,
            dx.view(grad.shape),
            None if norm_weight is None else d_norm[0],
            None if norm_bias is None else d_norm[1],
            *(part for pair in zip(d_inner, d_inner_biases, strict=True) for part in pair),
            d_outer_weight,
            d_outer_bias if ctx.has_bias[1] else None,
        )
