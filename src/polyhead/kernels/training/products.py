"""Products of matrices in training: of a linear map, and of its gradients.

torch multiplies fp32 in MKL and bf16 in oneDNN; a direct call of oneDNN can be faster in both, which depends
on the processor and the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX
from polyhead.kernels.training.product_choice import Product, fastest_product


def linear_output(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: (R, K), (N, K), (N,) -> (R, N)."""
    return _multiply("linear" if bias is None else "biased", x, weight, bias)


def grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x: (R, N), (N, K) -> (R, K)."""
    return _multiply("input", grad, weight.T, None)


def grad_weight(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of W in fp32: (R, N), (R, K) -> (N, K)."""
    return _multiply("weight", grad.T, x.T, None).float()


def _multiply(kind: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b in the way that is fastest for the shapes."""
    if not has_onednn(x.dtype):
        return _torch_linear(x, weight, bias)
    product = fastest_product(f"{kind}-{DTYPE_SUFFIX[x.dtype]}", _PRODUCTS, x, weight, bias)
    return product(x, weight, bias)


@cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of the dtype that are no emulation."""
    is_available = torch.backends.mkldnn.is_available()
    return is_available and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight.T) if bias is None else torch.addmm(bias, x, weight.T)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


_PRODUCTS: Mapping[str, Product] = {"torch": _torch_linear, "onednn": _onednn_linear}
