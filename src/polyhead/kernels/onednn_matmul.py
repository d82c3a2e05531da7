"""oneDNN matmuls in training on AMD CPUs, where MKL uses only half the vector width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from polyhead.kernels.cpu_features import cpu_flags, is_amd

_MIN_MULTIPLICATIONS = 2**20  # smallest product for which the Python overhead pays off
_MATMULS = (Tensor.__matmul__, Tensor.matmul, torch.matmul)


@cache
def mkl_without_avx512() -> bool:
    """Whether torch uses MKL, whose AVX-512 code is for Intel CPUs only, on an AMD CPU with AVX-512."""
    is_mkl_and_onednn = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return is_mkl_and_onednn and is_amd() and "avx512f" in cpu_flags()


class OnednnProducts(TorchFunctionMode):
    """Mode in which fp32 ``F.linear`` and ``matrix @ matrix`` on the CPU run in oneDNN where that is faster.

    Rounding differs from MKL's by about 1e-6.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if kwargs or torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        if func is F.linear and args[0].dim() > 1 and args[1].dim() == 2 and _use_onednn(*args[:2]):
            x, weight, *bias = args
            return _onednn_linear(x.flatten(0, -2), weight, *bias).unflatten(0, x.shape[:-1])
        if func in _MATMULS and args[0].dim() == args[1].dim() == 2 and _use_onednn(args[0], args[1].T):
            return _onednn_linear(args[0], args[1].T)
        return func(*args)


def _use_onednn(x: Tensor, weight: Tensor) -> bool:
    is_cpu_fp32 = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    return (
        is_cpu_fp32
        and x.numel() * len(weight) >= _MIN_MULTIPLICATIONS
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b: (N, K), (M, K), (M) -> (N, M)."""
    out: Tensor = _OneDnnLinear.apply(x, weight, bias)
    return out


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        x, weight = _without_gaps(x), _without_gaps(weight)
        if bias is None and not x.is_contiguous():  # oneDNN would copy x; the weight is smaller
            return _mkldnn_linear(weight.contiguous(), x, None).T
        return _mkldnn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _onednn_linear(grad, weight.T) if wants_x else None,
            _onednn_linear(grad.T, x.T) if wants_weight else None,
            grad.sum(0) if wants_bias else None,
        )


def _without_gaps(matrix: Tensor) -> Tensor:
    """The matrix, contiguous by rows or columns; other strides are a thousand times slower in oneDNN."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


def _mkldnn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
