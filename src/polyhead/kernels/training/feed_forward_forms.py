"""Feed-forward layers with a norm and a residual in two forms: by passes over all rows, or by blocks of rows.

By passes, each product is that of a library or of our own, whichever is fastest; by blocks, one call computes
everything. Which form is faster depends on the processor and the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX
from polyhead.kernels.training.blocks import (
    BlockInput,
    FeedForwardCall,
    describe_drop,
    describe_input,
    fits_blocks,
    run_blocks,
)
from polyhead.kernels.training.elementwise import Activation, Drop, address
from polyhead.kernels.training.epilogues import linear_activation, linear_residual
from polyhead.kernels.training.product_choice import fastest_product
from polyhead.kernels.training.products import grad_input, grad_weight


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
