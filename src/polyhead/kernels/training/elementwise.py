"""The passes between the products of a training step, in C++: norms, activations, dropout and residuals.

Rows (R, C) are contiguous; the residual stream, statistics and sums over rows are fp32. Sums have the same
bits for any number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, load_kernels
from polyhead.kernels.linear import PANEL
from polyhead.kernels.program import UnsupportedLayerError, activation_code
from polyhead.kernels.training.products import fastest_product, multiply
from polyhead.nn.dropout import Dropout, draw_bytes
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm

FLOAT, BOOL = ctypes.c_float, ctypes.c_bool
_DROP = [POINTER, INT64, FLOAT]  # bytes, threshold, scale
_ARGUMENTS: dict[str, list[Any]] = {
    "norm": [*[POINTER] * 3, FLOAT, *[POINTER] * 2, *[INT64] * 2, FLOAT, BOOL],
    "norm_gradient": [*[POINTER] * 4, FLOAT, *[POINTER] * 3, *[INT64] * 2, BOOL],
    "activate": [POINTER, *_DROP, POINTER, *[INT64] * 3, FLOAT, BOOL],
    "activate_gradient": [*[POINTER] * 2, *_DROP, *[POINTER] * 3, *[INT64] * 3, FLOAT, BOOL],
    "add_dropped": [*[POINTER] * 3, *_DROP, POINTER, *[INT64] * 2],
    "linear_activation": [*[POINTER] * 3, *_DROP, *[POINTER] * 2, *[INT64] * 4, FLOAT],
    "linear_residual": [*[POINTER] * 4, *_DROP, POINTER, *[INT64] * 3],
    "drop_gradient": [POINTER, *_DROP, *[POINTER] * 2, *[INT64] * 2],
}


def find_kernel(name: str, dtype: torch.dtype) -> Any:
    """The kernel of a name for rows of a dtype."""
    return _declare_arguments(load_kernels(), name, dtype)


@cache
def _declare_arguments(library: ctypes.CDLL | None, name: str, dtype: torch.dtype) -> Any:
    kernel = getattr(library, f"{name}_{DTYPE_SUFFIX[dtype]}")
    kernel.argtypes, kernel.restype = _ARGUMENTS[name], None
    return kernel


def address(tensor: Tensor | None) -> int | None:
    """A tensor as a kernel takes it."""
    return None if tensor is None else tensor.data_ptr()


class Norm(NamedTuple):
    """A layer norm, an RMS norm or none (``is_centred`` is None); a factor is ``weight + shift``."""

    is_centred: bool | None
    eps: float = 0.0
    shift: float = 0.0

    @classmethod
    def of(cls, norm: nn.Module) -> Norm | None:
        """The norm of a module; None if it is another one."""
        if type(norm) is LayerNorm:
            return cls(True, norm.eps)
        if type(norm) is RMSNorm:
            return cls(False, norm.eps, float(norm.zero_centered))
        return cls(None) if type(norm) is NoNorm else None

    def forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """x (R, C) in fp32 -> the normed rows in ``dtype``, and statistics (R, 2)."""
        if self.is_centred is None:
            return x.to(dtype), x.new_empty(0)
        (rows, width), out = x.shape, torch.empty(x.shape, dtype=dtype)
        stats = x.new_empty(rows, 2)
        find_kernel("norm", dtype)(
            x.data_ptr(), address(weight), address(bias), self.shift, out.data_ptr(), stats.data_ptr(),
            rows, width, self.eps, self.is_centred,
        )  # fmt: skip
        return out, stats

    def backward(
        self, grad: Tensor, x: Tensor, stats: Tensor, weight: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x, plus ``residual`` (R, C) in fp32 if given, of the weight and of the bias."""
        if self.is_centred is None:
            return grad.float() if residual is None else residual + grad, None, None
        (rows, width), out = x.shape, torch.empty_like(x)
        sums = x.new_empty(2, width)
        find_kernel("norm_gradient", grad.dtype)(
            grad.data_ptr(), x.data_ptr(), stats.data_ptr(), address(weight), self.shift, address(residual),
            out.data_ptr(), sums.data_ptr(), rows, width, self.is_centred,
        )  # fmt: skip
        return out, sums[0], sums[1]


class Drop(NamedTuple):
    """A dropout whose bytes are drawn, times a factor; without bytes nothing is dropped."""

    bytes_: Tensor | None
    threshold: int = 0
    scale: float = 1.0

    @classmethod
    def draw(cls, dropout: Dropout, shape: tuple[int, ...], factor: float = 1.0) -> Drop:
        """Draw the bytes that the module itself would draw for elements of this shape."""
        if not dropout.training or dropout.p == 0:
            return cls(None, scale=factor)
        threshold = dropout.threshold
        return cls(draw_bytes(shape), threshold, factor * 256 / (256 - threshold))

    def __call__(self, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
        """x + dropout(y + bias) in fp32: x (R, C) in fp32, y (R, C), bias (C,)."""
        out = torch.empty_like(x)
        find_kernel("add_dropped", y.dtype)(
            x.data_ptr(),
            y.data_ptr(),
            address(bias),
            address(self.bytes_),
            *self[1:],
            out.data_ptr(),
            *x.shape,
        )
        return out

    def backward(self, grad: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The gradient of y in ``dtype``, from that of the sum in fp32, and of the bias."""
        out, sums = torch.empty(grad.shape, dtype=dtype), grad.new_empty(grad.size(1))
        find_kernel("drop_gradient", dtype)(
            grad.data_ptr(), address(self.bytes_), *self[1:], out.data_ptr(), sums.data_ptr(), *grad.shape
        )
        return out, sums


class Activation(NamedTuple):
    """An activation, or a gated one: of the first half of the features, times the other half."""

    code: int
    slope: float
    is_gated: bool

    @classmethod
    @lru_cache(maxsize=32)
    def of(cls, activation: Any, is_gated: bool) -> Activation | None:
        """The activation of a layer without learned numbers; None if there is no kernel for it."""
        try:
            return cls(*activation_code(activation), is_gated)
        except UnsupportedLayerError:
            return None

    def forward(self, x: Tensor, drop: Drop) -> Tensor:
        """x (R, F) or (R, 2F) -> the activation after dropout, (R, F)."""
        rows, width = x.size(0), x.size(1) // (2 if self.is_gated else 1)
        out = x.new_empty(rows, width)
        find_kernel("activate", x.dtype)(
            x.data_ptr(), address(drop.bytes_), *drop[1:], out.data_ptr(), rows, width, self.code, self.slope,
            self.is_gated,
        )  # fmt: skip
        return out

    def backward(self, grad: Tensor, x: Tensor, drop: Drop) -> tuple[Tensor, Tensor, Tensor]:
        """The result of ``forward``, the gradient of x and its sum over rows. Overwrites grad (R, F)."""
        rows, width = grad.shape
        again, dx = torch.empty_like(grad), torch.empty_like(x) if self.is_gated else grad
        sums = torch.empty(x.size(1))
        find_kernel("activate_gradient", x.dtype)(
            grad.data_ptr(), x.data_ptr(), address(drop.bytes_), *drop[1:], again.data_ptr(), dx.data_ptr(),
            sums.data_ptr(), rows, width, self.code, self.slope, self.is_gated,
        )  # fmt: skip
        return again, dx, sums


def linear_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    """h = x Wᵀ + b and dropout(g(h)): (R, K), (N, K), (N,) in fp32 -> (R, N), and (R, N) or (R, N / 2)."""
    choice = _pass_activation
    if not activation.is_gated and weight.size(1) * weight.element_size() % 4 == 0:
        kind = f"activation{activation.code}-{DTYPE_SUFFIX[x.dtype]}"
        sizes = (*x.shape, weight.size(0))
        choice = fastest_product(kind, _ACTIVATION, sizes, x, weight, bias, activation, drop)
    return choice(x, weight, bias, activation, drop)


def linear_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    """residual + dropout(x Wᵀ + b) in fp32: (R, K), (N, K), (N,) in fp32, (R, N) in fp32 -> (R, N)."""
    choice = _pass_residual
    if weight.size(1) * weight.element_size() % 4 == 0:
        kind = f"residual-{DTYPE_SUFFIX[x.dtype]}"
        sizes = (*x.shape, weight.size(0))
        choice = fastest_product(kind, _RESIDUAL, sizes, x, weight, bias, residual, drop)
    return choice(x, weight, bias, residual, drop)


def _pass_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    hidden = multiply("linear", x, weight.T, None if bias is None else bias.to(x.dtype))
    return hidden, activation.forward(hidden, drop)


def _end_in_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    packed, steps = _pack(weight)
    hidden, active = (x.new_empty(x.size(0), weight.size(0)) for _ in range(2))
    find_kernel("linear_activation", x.dtype)(
        x.data_ptr(), packed.data_ptr(), address(bias), address(drop.bytes_), *drop[1:], hidden.data_ptr(),
        active.data_ptr(), *hidden.shape, steps, activation.code, activation.slope,
    )  # fmt: skip
    return hidden, active


def _pass_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    return drop(residual, multiply("linear", x, weight.T), bias)


def _end_in_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    (packed, steps), out = _pack(weight), residual.new_empty(residual.shape)
    find_kernel("linear_residual", x.dtype)(
        x.data_ptr(), packed.data_ptr(), address(bias), residual.data_ptr(), address(drop.bytes_), *drop[1:],
        out.data_ptr(), *out.shape, steps,
    )  # fmt: skip
    return out


_ACTIVATION: Mapping[str, Callable[..., Any]] = {"pass": _pass_activation, "epilogue": _end_in_activation}
_RESIDUAL: Mapping[str, Callable[..., Any]] = {"pass": _pass_residual, "epilogue": _end_in_residual}


def _pack(weight: Tensor) -> tuple[Tensor, int]:
    """W (N, K) in panels, as products.hpp reads it, and the steps of 4 bytes of a row."""
    steps = weight.size(1) * weight.element_size() // 4
    packed = weight.new_empty(-(-len(weight) // PANEL) * PANEL, weight.size(1))
    kernels = load_kernels()
    assert kernels is not None
    kernels.pack(weight.data_ptr(), packed.data_ptr(), len(weight), steps)
    return packed, steps
