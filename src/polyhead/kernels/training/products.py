"""Products of matrices in training: of a linear map, and of its gradients.

torch multiplies fp32 in MKL and bf16 in oneDNN; a direct call of oneDNN can be faster in both, which depends
on the processor and the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX
from polyhead.kernels.training.product_choice import Product, fastest_product


def linear_output(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: (R, K), (N, K), (N,) -> (R, N)."""
    sizes = (*x.shape, weight.size(0))
    return _multiply("linear" if bias is None else "biased", _LINEAR, sizes, x, weight, bias)


def grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x: (R, N), (N, K) -> (R, K)."""
    return _multiply("input", _GRAD_INPUT, (*grad.shape, weight.size(1)), grad, weight)


def grad_weight(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of W in fp32: (R, N), (R, K) -> (N, K)."""
    R, N = grad.shape
    return _multiply("weight", _GRAD_WEIGHT, (N, R, x.size(1)), grad, x).float()


def _multiply(
    kind: str,
    candidates: Mapping[str, Product],
    sizes: tuple[int, ...],
    x: Tensor,
    other: Tensor,
    *bias: Tensor | None,
) -> Tensor:
    """The product of x and another matrix by the candidate that is fastest for the sizes."""
    product = candidates["torch"]
    if has_onednn(x.dtype):
        product = fastest_product(f"{kind}-{DTYPE_SUFFIX[x.dtype]}", candidates, sizes, x, other, *bias)
    out: Tensor = product(x, other, *bias)
    return out


@cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of the dtype that are no emulation."""
    is_available = torch.backends.mkldnn.is_available()
    return is_available and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


_LINEAR: Mapping[str, Product] = {"torch": F.linear, "onednn": _onednn_linear}
_GRAD_INPUT: Mapping[str, Product] = {
    "torch": torch.mm,
    "onednn": lambda grad, weight: _onednn_linear(grad, weight.T),
}
_GRAD_WEIGHT: Mapping[str, Product] = {
    "torch": lambda grad, x: torch.mm(grad.t(), x),
    "onednn": lambda grad, x: _onednn_linear(grad.T, x.T),
}
