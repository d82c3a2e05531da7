"""Norms over the feature axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.registry import NORM


@NORM.register("layernorm")
class LayerNorm(nn.LayerNorm):
    """Centre and scale each token over its features, biased variance (Ba et al., 2016)."""

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(d_model, eps=eps, bias=bias)


@NORM.register("rmsnorm")
class RMSNorm(nn.Module):
    """Scale each token by the root mean square of its features, no centring (Zhang & Sennrich, 2019, eq. 4)."""

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        if x.is_cuda or not torch.is_grad_enabled():
            return nn.functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)
        out: Tensor = _RMS.apply(x, self.weight, self.eps)
        return out


class _RMS(torch.autograd.Function):
    """The CPU has no fused kernel for it; written out, autograd keeps four tensors of x's size instead of one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = (
            torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
            .square_()
            .div_(x.size(-1))
            .add_(eps)
            .rsqrt_()
        )
        normed = (x * scale).to(x.dtype)
        ctx.save_for_backward(normed, weight, scale)
        return normed * weight.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, scale = ctx.saved_tensors
        d_weight = (grad * normed).reshape(-1, grad.size(-1)).sum(0, dtype=scale.dtype).to(weight.dtype)
        grad = grad * weight.to(grad.dtype)
        inner = (grad * normed).sum(-1, keepdim=True).div_(grad.size(-1))
        return (torch.addcmul(grad, normed, inner, value=-1) * scale).to(grad.dtype), d_weight, None
