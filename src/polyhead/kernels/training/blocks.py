"""Maps of a residual in two forms: by passes over all rows, or by blocks of rows (train_blocks.hpp).

By passes, each product is that of a library; by blocks, which stay in the cache, one call computes the
product, or its gradients, with the norm or dropout. Which form is faster depends on the processor and the
shape.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, kernels_status
from polyhead.kernels.training.elementwise import FLOAT, Drop, Norm, address
from polyhead.kernels.training.products import fastest_product, multiply

_LANES = 16  # widths must be multiples of this
_MAX_WEIGHT = 2**18  # elements of a weight; larger ones leave the cache, and so do their gradients

Forms = Mapping[str, Callable[..., Any]]
"""The forms of an operation, by name: ``passes`` and ``blocks``."""


class BlockInput(NamedTuple):
    """What the first product of a residual reads: the norm of x, or rows that are given."""

    norm: Norm
    x: Tensor | None  # (R, C) fp32; None in a backward pass that has ``product_rows``
    product_rows: Tensor | None  # (R, C) in the dtype of the products; None if they are the norm of x
    weight: Tensor | None  # of the norm
    bias: Tensor | None

    def compute_rows(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The rows (R, C) in the dtype of the products, and statistics of the norm if there is one."""
        if self.product_rows is not None:
            return self.product_rows, None
        assert self.x is not None
        return self.norm.forward(self.x, self.weight, self.bias, dtype)

    def gradient(
        self, d_rows: Tensor, residual: Tensor, stats: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x, of the norm's weight and of its bias, from those of the rows and the residual."""
        if self.product_rows is not None:
            return Drop(None)(residual, d_rows, None), None, None
        assert self.x is not None and stats is not None
        return self.norm.backward(d_rows, self.x, stats, self.weight, residual)


class _Input(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ["x", "product_rows", "weight", "bias", "stats"]),
        *((name, INT64) for name in ["C", "is_centred"]),
        *((name, FLOAT) for name in ["shift", "eps"]),
    ]


class _Drop(ctypes.Structure):
    _fields_ = [("bytes", POINTER), ("threshold", INT64), ("scale", ctypes.c_double)]


class _LinearCall(ctypes.Structure):
    """LinearCall of train_blocks.hpp."""

    _fields_ = [
        ("input", _Input),
        ("drop", _Drop),
        *((name, POINTER) for name in ["weight", "bias", "y", "dy", "grad", "dx", "d_weight", "d_sums"]),
        *((name, INT64) for name in ["R", "N"]),
    ]


class FeedForwardCall(ctypes.Structure):
    """The struct of the same name in train_blocks.hpp."""

    _fields_ = [
        ("input", _Input),
        ("inner", _Drop),
        ("outer", _Drop),
        *((name, POINTER) for name in ["up", "down", "up_bias", "down_bias", "hidden", "out", "grad"]),
        *((name, POINTER) for name in ["d_up", "d_down", "d_sums"]),
        *((name, INT64) for name in ["R", "F", "activation", "is_gated"]),
        ("slope", ctypes.c_double),
    ]


def run_fastest(
    kind: str, forms: Forms, weights: Sequence[Tensor], n_rows: int, *inputs: Any, needs_weights: bool = True
) -> Any:
    """The result of the faster form for so many rows and these weights (N, K); the last has the sizes.

    The form by blocks takes small weights of full lanes, and computes the gradients of all of them.
    """
    form = forms["passes"]
    if needs_weights and all(
        weight.numel() <= _MAX_WEIGHT and weight.size(0) % _LANES == weight.size(1) % _LANES == 0
        for weight in weights
    ):
        kind = f"{kind}-{DTYPE_SUFFIX[weights[0].dtype]}"
        form = fastest_product(kind, forms, (n_rows, *weights[-1].shape), *inputs)
    return form(*inputs)


def describe_input(rows: BlockInput, width: int, stats: Tensor | None = None) -> _Input:
    """The input as a kernel takes it."""
    norm, *tensors = rows
    pointers = map(address, (*tensors, stats))
    return _Input(*pointers, width, bool(norm.is_centred), norm.shift, norm.eps)


def describe_drop(drop: Drop) -> _Drop:
    """A dropout as a kernel takes it."""
    return _Drop(address(drop.bytes_), *drop[1:])


def run_blocks(name: str, dtype: torch.dtype, call: ctypes.Structure) -> None:
    """Call a kernel with products in a dtype."""
    getattr(kernels_status().kernels, f"{name}_{DTYPE_SUFFIX[dtype]}")(ctypes.byref(call))


def _norm_linear_by_passes(
    rows: BlockInput, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    product_rows, stats = rows.compute_rows(weight.dtype)
    bias = None if bias is None else bias.to(weight.dtype)
    return multiply("linear", product_rows, weight.T, bias), stats


def _norm_linear_by_blocks(
    rows: BlockInput, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    assert rows.x is not None
    (N, C), R = weight.shape, len(rows.x)
    y = weight.new_empty(R, N)
    stats = y.new_empty(R, 2, dtype=torch.float32) if rows.product_rows is None else None
    call = _LinearCall(describe_input(rows, C, stats), R=R, N=N)
    call.weight, call.bias, call.y = map(address, (weight, bias, y))
    run_blocks("norm_linear", weight.dtype, call)
    return y, stats


def _norm_linear_gradient_by_passes(
    rows: BlockInput, weight: Tensor, dy: Tensor, grad: Tensor, stats: Tensor | None, needs_weight: bool
) -> tuple[Tensor | None, ...]:
    gradients = rows.gradient(multiply("input", dy, weight), grad, stats)
    if not needs_weight:
        return None, *gradients
    return multiply("weight", dy.T, rows.compute_rows(weight.dtype)[0]).float(), *gradients


def _norm_linear_gradient_by_blocks(
    rows: BlockInput, weight: Tensor, dy: Tensor, grad: Tensor, stats: Tensor | None, needs_weight: bool
) -> tuple[Tensor | None, ...]:
    N, C = weight.shape
    dx, d_weight, d_norm = torch.empty_like(grad), grad.new_empty(N, C), grad.new_empty(2, C)
    call = _LinearCall(describe_input(rows, C, stats), R=len(dy), N=N)
    call.weight, call.dy, call.grad = map(address, (weight, dy, grad))
    call.dx, call.d_weight, call.d_sums = map(address, (dx, d_weight, d_norm))
    run_blocks("norm_linear_gradient", weight.dtype, call)
    return d_weight, dx, *d_norm


def _linear_residual_gradient_by_passes(
    y: Tensor, weight: Tensor, drop: Drop, grad: Tensor, needs_weight: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    d_out, d_bias = drop.backward(grad, weight.dtype)
    d_weight = multiply("weight", d_out.T, y).float() if needs_weight else None
    return multiply("input", d_out, weight), d_weight, d_bias


def _linear_residual_gradient_by_blocks(
    y: Tensor, weight: Tensor, drop: Drop, grad: Tensor, needs_weight: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    C, N = weight.shape
    dy, d_weight, d_bias = torch.empty_like(y), grad.new_empty(C, N), grad.new_empty(C)
    call = _LinearCall(describe_input(_NO_INPUT, C), describe_drop(drop), R=len(y), N=N)
    call.weight, call.y, call.dy, call.grad = map(address, (weight, y, dy, grad))
    call.d_weight, call.d_sums = map(address, (d_weight, d_bias))
    run_blocks("linear_residual_gradient", weight.dtype, call)
    return dy, d_weight, d_bias


_NO_INPUT = BlockInput(Norm(None), None, None, None, None)

NORM_LINEAR: Forms = {"passes": _norm_linear_by_passes, "blocks": _norm_linear_by_blocks}
"""Rows, weight (N, C) as products read it, bias -> N(x) Wᵀ + b (R, N), and statistics of the norm (R, 2)."""

NORM_LINEAR_GRADIENT: Forms = {
    "passes": _norm_linear_gradient_by_passes,
    "blocks": _norm_linear_gradient_by_blocks,
}
"""Rows, weight, dy (R, N), that of the residual (R, C) fp32, statistics, whether the weight needs its own ->
the gradients of the weight, the input, and the norm's weight and bias.
"""

LINEAR_RESIDUAL_GRADIENT: Forms = {
    "passes": _linear_residual_gradient_by_passes,
    "blocks": _linear_residual_gradient_by_blocks,
}
"""y (R, N), weight (C, N), dropout, the gradient of x + dropout(y Wᵀ + b), (R, C) fp32, whether the weight
needs its own -> the gradients of y, the weight and the bias.
"""
