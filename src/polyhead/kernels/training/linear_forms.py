"""The linear maps before and after attention in two forms: by passes over all rows, or by blocks of rows.

By passes, each product is that of a library; by blocks, one call computes the product, or its gradients, with
the norm or dropout. Which form is faster depends on the processor and the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX
from polyhead.kernels.training.blocks import (
    BlockInput,
    LinearCall,
    describe_drop,
    describe_input,
    fits_blocks,
    run_blocks,
)
from polyhead.kernels.training.elementwise import Drop, Norm, address
from polyhead.kernels.training.product_choice import fastest_product
from polyhead.kernels.training.products import grad_input, grad_weight, linear_output


class InputGradients(NamedTuple):
    """The gradients of the input, of the map's weight, and of the norm's weight and bias."""

    x: Tensor
    weight: Tensor | None
    norm: tuple[Tensor | None, Tensor | None]


class OutputGradients(NamedTuple):
    """The gradients of what the map reads, of its weight and of its bias."""

    y: Tensor
    weight: Tensor | None
    bias: Tensor


def norm_linear(rows: BlockInput, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """N(x) Wᵀ + b (R, N), and statistics of the norm (R, 2); the weight (N, C) as products read it."""
    form = _choose("norm-linear", _NORM_LINEAR, weight, rows.n_rows, rows, weight, bias)
    out: tuple[Tensor, Tensor | None] = form(rows, weight, bias)
    return out


def norm_linear_gradient(
    rows: BlockInput, weight: Tensor, dy: Tensor, grad: Tensor, stats: Tensor | None, needs_weight: bool
) -> InputGradients:
    """From the gradient of the output, dy (R, N), and that of the residual, (R, C) fp32."""
    inputs = rows, weight, dy, grad, stats, needs_weight
    form: Callable[..., InputGradients] = _norm_linear_gradient_by_passes
    if needs_weight:
        form = _choose("norm-linear-gradient", _NORM_LINEAR_GRADIENT, weight, len(dy), *inputs)
    return form(*inputs)


def linear_residual_gradient(
    y: Tensor, weight: Tensor, drop: Drop, grad: Tensor, needs_weight: bool
) -> OutputGradients:
    """From that of x + dropout(y Wᵀ + b), (R, C) fp32: y (R, N), the weight (C, N)."""
    inputs = y, weight, drop, grad, needs_weight
    form: Callable[..., OutputGradients] = _linear_residual_gradient_by_passes
    if needs_weight:
        form = _choose("linear-residual-gradient", _LINEAR_RESIDUAL_GRADIENT, weight, len(y), *inputs)
    return form(*inputs)


def _choose(
    kind: str, forms: Mapping[str, Callable[..., Any]], weight: Tensor, n_rows: int, *inputs: Any
) -> Callable[..., Any]:
    """The faster form; the one by passes for weights that do not fit the other one."""
    if not fits_blocks(weight):
        return forms["passes"]
    return fastest_product(f"{kind}-{DTYPE_SUFFIX[weight.dtype]}", forms, (n_rows, *weight.shape), *inputs)


def _norm_linear_by_passes(
    rows: BlockInput, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    product_rows, stats = rows.compute_rows(weight.dtype)
    return linear_output(product_rows, weight, None if bias is None else bias.to(weight.dtype)), stats


def _norm_linear_by_blocks(
    rows: BlockInput, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    N, C = weight.shape
    y = weight.new_empty(rows.n_rows, N)
    stats = y.new_empty(rows.n_rows, 2, dtype=torch.float32) if rows.product_rows is None else None
    call = LinearCall(describe_input(rows, C, stats), R=len(y), N=N)
    call.weight, call.bias, call.y = map(address, (weight, bias, y))
    run_blocks("norm_linear", weight.dtype, call)
    return y, stats


def _norm_linear_gradient_by_passes(
    rows: BlockInput, weight: Tensor, dy: Tensor, grad: Tensor, stats: Tensor | None, needs_weight: bool
) -> InputGradients:
    dx, *d_norm = rows.gradient(grad_input(dy, weight), grad, stats)
    d_weight = grad_weight(dy, rows.compute_rows(weight.dtype)[0]) if needs_weight else None
    return InputGradients(dx, d_weight, (d_norm[0], d_norm[1]))


def _norm_linear_gradient_by_blocks(
    rows: BlockInput, weight: Tensor, dy: Tensor, grad: Tensor, stats: Tensor | None, needs_weight: bool
) -> InputGradients:
    N, C = weight.shape
    dx, d_weight, d_norm = torch.empty_like(grad), grad.new_empty(N, C), grad.new_empty(2, C)
    call = LinearCall(describe_input(rows, C, stats), R=len(dy), N=N)
    call.weight, call.dy, call.grad = map(address, (weight, dy, grad))
    call.dx, call.d_weight, call.d_sums = map(address, (dx, d_weight, d_norm))
    run_blocks("norm_linear_gradient", weight.dtype, call)
    return InputGradients(dx, d_weight, (d_norm[0], d_norm[1]))


def _linear_residual_gradient_by_passes(
    y: Tensor, weight: Tensor, drop: Drop, grad: Tensor, needs_weight: bool
) -> OutputGradients:
    d_out, d_bias = drop.backward(grad, weight.dtype)
    d_weight = grad_weight(d_out, y) if needs_weight else None
    return OutputGradients(grad_input(d_out, weight), d_weight, d_bias)


def _linear_residual_gradient_by_blocks(
    y: Tensor, weight: Tensor, drop: Drop, grad: Tensor, needs_weight: bool
) -> OutputGradients:
    C, N = weight.shape
    dy, d_weight, d_bias = torch.empty_like(y), grad.new_empty(C, N), grad.new_empty(C)
    call = LinearCall(describe_input(_NO_INPUT, C), describe_drop(drop), R=len(y), N=N)
    call.weight, call.y, call.dy, call.grad = map(address, (weight, y, dy, grad))
    call.d_weight, call.d_sums = map(address, (d_weight, d_bias))
    run_blocks("linear_residual_gradient", weight.dtype, call)
    return OutputGradients(dy, d_weight, d_bias)


_NO_INPUT = BlockInput(Norm(None), None, None, None, None)
_NORM_LINEAR: Mapping[str, Callable[..., Any]] = {
    "passes": _norm_linear_by_passes,
    "blocks": _norm_linear_by_blocks,
}
_NORM_LINEAR_GRADIENT: Mapping[str, Callable[..., Any]] = {
    "passes": _norm_linear_gradient_by_passes,
    "blocks": _norm_linear_gradient_by_blocks,
}
_LINEAR_RESIDUAL_GRADIENT: Mapping[str, Callable[..., Any]] = {
    "passes": _linear_residual_gradient_by_passes,
    "blocks": _linear_residual_gradient_by_blocks,
}
