"""Products with what follows them: bias, activation and dropout, or bias, dropout and residual.

Each is a product of a library and a pass over its result, or a product of our own that ends in the same, with
weights that it packs first. Which one is faster depends on the processor and the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX, load_kernels
from polyhead.kernels.linear import PANEL
from polyhead.kernels.training.elementwise import Activation, Drop, address, find_kernel
from polyhead.kernels.training.product_choice import fastest_product
from polyhead.kernels.training.products import linear_output


def linear_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    """h = x Wᵀ + b and dropout(g(h)): (R, K), (N, K), (N,) in fp32 -> (R, N), and (R, N) or (R, N / 2)."""
    choice = _pass_activation
    if not activation.is_gated and _can_pack(weight):
        kind = f"activation{activation.code}-{DTYPE_SUFFIX[x.dtype]}"
        sizes = (*x.shape, weight.size(0))
        choice = fastest_product(kind, _ACTIVATION, sizes, x, weight, bias, activation, drop)
    return choice(x, weight, bias, activation, drop)


def linear_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    """residual + dropout(x Wᵀ + b) in fp32: (R, K), (N, K), (N,) in fp32, (R, N) in fp32 -> (R, N)."""
    choice = _pass_residual
    if _can_pack(weight):
        kind = f"residual-{DTYPE_SUFFIX[x.dtype]}"
        sizes = (*x.shape, weight.size(0))
        choice = fastest_product(kind, _RESIDUAL, sizes, x, weight, bias, residual, drop)
    return choice(x, weight, bias, residual, drop)


def _pass_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    hidden = linear_output(x, weight, None if bias is None else bias.to(x.dtype))
    return hidden, activation.forward(hidden, drop)


def _end_in_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, drop: Drop
) -> tuple[Tensor, Tensor]:
    packed = _pack(weight)
    hidden, active = (x.new_empty(x.size(0), weight.size(0)) for _ in range(2))
    find_kernel("linear_activation", x.dtype)(
        x.data_ptr(), packed.data_ptr(), address(bias), *drop.pointers, hidden.data_ptr(), active.data_ptr(),
        *hidden.shape, _count_steps(weight), activation.code, activation.slope,
    )  # fmt: skip
    return hidden, active


def _pass_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    return drop(residual, linear_output(x, weight), bias)


def _end_in_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, drop: Drop) -> Tensor:
    packed, out = _pack(weight), residual.new_empty(residual.shape)
    find_kernel("linear_residual", x.dtype)(
        x.data_ptr(), packed.data_ptr(), address(bias), residual.data_ptr(), *drop.pointers, out.data_ptr(),
        *out.shape, _count_steps(weight),
    )  # fmt: skip
    return out


_ACTIVATION: Mapping[str, Callable[..., Any]] = {"pass": _pass_activation, "epilogue": _end_in_activation}
_RESIDUAL: Mapping[str, Callable[..., Any]] = {"pass": _pass_residual, "epilogue": _end_in_residual}


def _can_pack(weight: Tensor) -> bool:
    """Whether rows are a whole number of steps of 4 bytes."""
    return weight.size(1) * weight.element_size() % 4 == 0


def _count_steps(weight: Tensor) -> int:
    return weight.size(1) * weight.element_size() // 4


def _pack(weight: Tensor) -> Tensor:
    """W (N, K) in panels, as products.hpp reads it."""
    packed = weight.new_empty(-(-len(weight) // PANEL) * PANEL, weight.size(1))
    kernels = load_kernels()
    assert kernels is not None
    kernels.pack(weight.data_ptr(), packed.data_ptr(), len(weight), _count_steps(weight))
    return packed
