"""Residuals with a feed-forward layer, plain or gated, in one function.

Kept for the backward pass are the input, the preactivations and the random bytes of dropout; the normed input
and the activations are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.kernels.build_extension import DTYPE_SUFFIX
from polyhead.kernels.training.blocks import (
    BlockInput,
    FeedForwardCall,
    describe_drop,
    describe_input,
    fits_blocks,
    run_blocks,
)
from polyhead.kernels.training.conditions import (
    WeightCopies,
    find_norm,
    is_fusable,
    join_biases,
    list_modules,
    norm_weights,
)
from polyhead.kernels.training.elementwise import (
    Activation,
    Drop,
    Norm,
    address,
    linear_activation,
    linear_residual,
)
from polyhead.kernels.training.product_choice import fastest_product
from polyhead.kernels.training.products import grad_input, grad_weight
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.residual import Residual


class FeedForwardParts(NamedTuple):
    """What a layer computes with, besides its input: rows of C numbers, F features."""

    activation: Activation
    inner: Drop  # of the activations
    outer: Drop  # of the output
    up: Tensor  # (F, C), or (2F, C) with a gate, in the dtype of the products
    down: Tensor  # (C, F)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self.up.dtype


class FeedForwardGradients(NamedTuple):
    """The gradients of the input, the weights, the biases, and the weight and bias of the norm."""

    x: Tensor
    up: Tensor | None
    down: Tensor | None
    up_bias: Tensor
    down_bias: Tensor
    norm: tuple[Tensor | None, Tensor | None]


def feed_forward(
    parts: FeedForwardParts, rows: BlockInput, up_bias: Tensor | None, down_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x + dropout(FFN(N(x))) (R, C), the preactivations (R, F or 2F) and statistics of the norm (R, 2)."""
    inputs = parts, rows, up_bias, down_bias
    out: tuple[Tensor, Tensor, Tensor | None] = _choose("feed-forward", _FORWARD, *inputs)(*inputs)
    return out


def feed_forward_gradient(
    parts: FeedForwardParts,
    rows: BlockInput,
    grad: Tensor,
    hidden: Tensor,
    stats: Tensor | None,
    needs_weights: tuple[bool, bool],
) -> FeedForwardGradients:
    """From the gradient of the output, (R, C) fp32; of the two weights only those that are needed."""
    inputs = parts, rows, grad, hidden, stats, needs_weights
    choice: Callable[..., FeedForwardGradients] = _gradient_by_passes
    if all(needs_weights):
        choice = _choose("feed-forward-gradient", _GRADIENT, *inputs)
    return choice(*inputs)


def _choose(
    kind: str, forms: Mapping[str, Callable[..., Any]], parts: FeedForwardParts, rows: BlockInput, *more: Any
) -> Callable[..., Any]:
    """The faster form; the one by passes for weights that do not fit the other one."""
    if not fits_blocks(parts.up, parts.down):
        return forms["passes"]
    gate = "-gated" if parts.activation.is_gated else ""
    kind = f"{kind}{gate}-{parts.activation.code}-{DTYPE_SUFFIX[parts.dtype]}"
    return fastest_product(kind, forms, (rows.n_rows, *parts.down.shape), parts, rows, *more)


def _forward_by_passes(
    parts: FeedForwardParts, rows: BlockInput, up_bias: Tensor | None, down_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    assert rows.x is not None
    product_rows, stats = rows.compute_rows(parts.dtype)
    hidden, active = linear_activation(product_rows, parts.up, up_bias, parts.activation, parts.inner)
    return linear_residual(active, parts.down, down_bias, rows.x, parts.outer), hidden, stats


def _gradient_by_passes(
    parts: FeedForwardParts,
    rows: BlockInput,
    grad: Tensor,
    hidden: Tensor,
    stats: Tensor | None,
    needs_weights: tuple[bool, bool],
) -> FeedForwardGradients:
    d_out, d_down_bias = parts.outer.backward(grad, parts.dtype)
    d_active = grad_input(d_out, parts.down)
    active, d_hidden, d_up_bias = parts.activation.backward(d_active, hidden, parts.inner)
    d_down = grad_weight(d_out, active) if needs_weights[1] else None
    del active, d_out
    dx, *d_norm = rows.gradient(grad_input(d_hidden, parts.up), grad, stats)
    d_up = grad_weight(d_hidden, rows.compute_rows(parts.dtype)[0]) if needs_weights[0] else None
    return FeedForwardGradients(dx, d_up, d_down, d_up_bias, d_down_bias, (d_norm[0], d_norm[1]))


def _forward_by_blocks(
    parts: FeedForwardParts, rows: BlockInput, up_bias: Tensor | None, down_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    assert rows.x is not None
    hidden = rows.x.new_empty(rows.n_rows, len(parts.up), dtype=parts.dtype)
    stats = rows.x.new_empty(rows.n_rows, 2) if rows.product_rows is None else None
    out = torch.empty_like(rows.x)
    call = _describe(parts, rows, stats, hidden, out)
    call.up_bias, call.down_bias = address(up_bias), address(down_bias)
    run_blocks("feed_forward", parts.dtype, call)
    return out, hidden, stats


def _gradient_by_blocks(
    parts: FeedForwardParts,
    rows: BlockInput,
    grad: Tensor,
    hidden: Tensor,
    stats: Tensor | None,
    needs_weights: tuple[bool, bool],
) -> FeedForwardGradients:
    width, C = parts.up.shape
    dx, sums = torch.empty_like(grad), grad.new_empty(3 * C + width)
    d_up, d_down = (grad.new_empty(weight.shape) for weight in (parts.up, parts.down))
    call = _describe(parts, rows, stats, hidden, dx)
    call.grad, call.d_up, call.d_down, call.d_sums = map(address, (grad, d_up, d_down, sums))
    run_blocks("feed_forward_gradient", parts.dtype, call)
    d_down_bias, d_up_bias, *d_norm = sums.split([C, width, C, C])
    return FeedForwardGradients(dx, d_up, d_down, d_up_bias, d_down_bias, (d_norm[0], d_norm[1]))


def _describe(
    parts: FeedForwardParts, rows: BlockInput, stats: Tensor | None, hidden: Tensor, out: Tensor
) -> FeedForwardCall:
    """The call of a kernel, without what only one direction has."""
    activation, (C, F) = parts.activation, parts.down.shape
    return FeedForwardCall(
        describe_input(rows, C, stats),
        describe_drop(parts.inner),
        describe_drop(parts.outer),
        up=address(parts.up), down=address(parts.down), hidden=address(hidden), out=address(out),
        R=rows.n_rows, F=F,
        activation=activation.code, is_gated=activation.is_gated, slope=activation.slope,
    )  # fmt: skip


_FORWARD: Mapping[str, Callable[..., Any]] = {"passes": _forward_by_passes, "blocks": _forward_by_blocks}
_GRADIENT: Mapping[str, Callable[..., Any]] = {"passes": _gradient_by_passes, "blocks": _gradient_by_blocks}


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
        *norm_weights(residual),
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
