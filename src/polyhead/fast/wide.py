"""Products of matrices while a model learns, with the whole width of a processor of which MKL takes half."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from polyhead.fast.processor import flags, is_amd

LEAST = 2**20  # multiplications of a product that is worth the way through Python
PRODUCTS = (Tensor.__matmul__, Tensor.matmul, torch.matmul)


def wide_products() -> AbstractContextManager[object]:
    """Within it fp32 products are oneDNN's on processors where torch's take half of the width; elsewhere it does nothing."""
    return WideProducts() if narrow() else nullcontext()


def narrow() -> bool:
    """Whether torch multiplies by MKL, which has AVX-512 for Intel's processors alone, on another that has it too."""
    asked = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return asked and is_amd() and "avx512f" in flags()


class WideProducts(TorchFunctionMode):
    """``F.linear`` and ``matrix @ matrix`` in fp32 on the CPU are oneDNN's: the numbers of torch but for rounding (about 1e-6)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if kwargs:
            return func(*args, **kwargs)
        if func is F.linear and args[0].dim() > 1 and args[1].dim() == 2 and _fits(*args[:2]):
            x, weight, *bias = args
            return _linear(x.flatten(0, -2), weight, *bias).unflatten(0, x.shape[:-1])
        if func in PRODUCTS and args[0].dim() == args[1].dim() == 2 and _fits(args[0], args[1].T):
            return _linear(args[0], args[1].T)
        return func(*args)


def _fits(x: Tensor, weight: Tensor) -> bool:
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    return plain and x.numel() * len(weight) >= LEAST and not torch.is_autocast_enabled("cpu")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: (N, K), (M, K), (M) -> (N, M)."""
    out: Tensor = _Linear.apply(x, weight, bias)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        x, weight = _dense(x), _dense(weight)
        if bias is None and not x.is_contiguous():  # oneDNN would copy x; the other side is smaller
            return _product(weight.contiguous(), x, None).T
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _linear(grad, weight.T) if wants_x else None,
            _linear(grad.T, x.T) if wants_weight else None,
            grad.sum(0) if wants_bias else None,
        )


def _dense(matrix: Tensor) -> Tensor:
    """By rows or by columns without gaps; for any other oneDNN has nothing but its reference, a thousand times slower."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
