"""Norms, called with the tokens and their positions: (B, T, C), (B, T) -> (B, T, C).

Where a norm is placed in a block, before or after a sub-layer, is decided by the residual:
``model.norm_first`` and ``model.sandwich_norm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeFloat, PositiveFraction
from polyhead.core.registry import NORM


@NORM.register("layernorm")
class LayerNorm(nn.LayerNorm):
    """Centre and scale each token over its features.

    The norm of the original Transformer and the default. On the CPU it has a fused kernel.

    Equation: y = (x - μ) / √(σ² + eps) ⊙ γ + β,  μ = mean(x),  σ² = mean((x - μ)²), the biased variance
    Paper: Ba et al., 2016
    When: the safe choice
    Options:
      eps: added to the variance
      bias: learn β
    """

    def __init__(self, d_model: int, *, eps: NonNegativeFloat = 1e-5, bias: bool = True) -> None:
        super().__init__(d_model, eps=eps, bias=bias)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(..., C) -> (..., C)."""
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


@NORM.register("rmsnorm")
class RMSNorm(nn.Module):
    """Scale each token by the root mean square of its features, without centring.

    No mean and no bias, so there is less to compute and to learn. The mean square is taken in fp32.

    Equation: y = x / √(mean(x²) + eps) ⊙ γ,  or ⊙ (1 + γ) if zero_centered
    Paper: Zhang & Sennrich, 2019, eq. 4
    When: a good first choice for a new model; used in T5 and Llama
    Options:
      eps: added to the mean square
      zero_centered: γ is stored as its distance from 1 and starts at 0, so weight decay pulls the factor to 1
        (Gemma, 2024)
      weight: learn γ; without, it stays 1 (nanochat, 2025)
    """

    def __init__(
        self, d_model: int, *, eps: NonNegativeFloat = 1e-6, zero_centered: bool = False, weight: bool = True
    ) -> None:
        super().__init__()
        if zero_centered and not weight:
            raise UserError("zero_centered of rmsnorm requires a weight; remove it or weight=false")
        self.eps, self.zero_centered = eps, zero_centered
        factors = torch.zeros(d_model) if zero_centered else torch.ones(d_model)
        self.weight: Tensor
        if weight:
            self.weight = nn.Parameter(factors)
        else:
            self.register_buffer("weight", factors, persistent=False)

    def compute_buffers(self) -> None:
        """Compute the weight on the default device, unless it is learned."""
        if "weight" in self._buffers:
            self.weight = torch.ones(len(self.weight))

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(..., C) -> (..., C)."""
        weight = 1 + self.weight if self.zero_centered else self.weight
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), self.eps)
        out: Tensor = _RMSNormFunction.apply(x, weight, self.eps)
        return out


@NORM.register("batchnorm")
class BatchNorm(nn.Module):
    """Centre and scale each feature over all tokens of the batch; at inference with running statistics.

    Padding is excluded. In training, the statistics of a token include the other tokens of its batch, also
    later ones, so a decoder trains with some information from the targets; at inference it has none. The
    running variance is the unbiased one, as in PyTorch. In distributed training the statistics are those of
    all ranks.

    Equation: y = (x - μ) / √(σ² + eps) ⊙ γ + β,  μ and σ² of each feature over the batch;
              running ← (1 - momentum) running + momentum · that of the batch
    Paper: Ioffe & Szegedy, 2015
    When: for comparison only: batches of text differ too much in length and content
    Options:
      eps: added to the variance
      momentum: weight of the newest batch in the running statistics
    """

    needs_padding_mask = True

    def __init__(
        self, d_model: int, *, eps: NonNegativeFloat = 1e-5, momentum: PositiveFraction = 0.1
    ) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))
        self.running_mean: Tensor
        self.running_var: Tensor
        # sums a vector over all ranks; the identity in a single process
        self.all_reduce: Callable[[Tensor], Tensor] = _identity_reduce

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        mean, var = self._batch_statistics(x, pos) if self.training else (self.running_mean, self.running_var)
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale.to(x.dtype) + (self.bias - mean * scale).to(x.dtype)

    def _batch_statistics(self, x: Tensor, pos: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and biased variance of the tokens, (C,) each; updates the running statistics (unbiased)."""
        tokens = x.flatten(0, -2).to(torch.promote_types(x.dtype, torch.float32))
        empty = None if pos is None else (pos < 0).expand(x.shape[:-1]).reshape(-1, 1)
        # the count stays a tensor: reading it would wait for all work of another device
        n_tokens = tokens.new_full((1,), len(tokens)) if empty is None else (~empty).sum(0).to(tokens.dtype)
        tokens = tokens if empty is None else tokens.masked_fill(empty, 0)
        sums = self.all_reduce(torch.cat([tokens.sum(0), n_tokens]))
        has_variance, count = sums[-1] >= 2, sums[-1].clamp(min=2)
        mean = sums[:-1] / count
        centred = tokens - mean if empty is None else (tokens - mean).masked_fill(empty, 0)
        var = self.all_reduce(torch.cat([centred.square().sum(0), n_tokens]))[:-1] / count
        with torch.no_grad():
            unbiased_var = var * (count / (count - 1))
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased_var)):
                # a non-finite step is skipped by the optimizer, but would stay in the running statistics
                is_valid = has_variance & new.isfinite()
                running.lerp_(torch.where(is_valid, new.to(running.dtype), running), self.momentum)
        mean = torch.where(has_variance, mean, self.running_mean)
        return mean, torch.where(has_variance, var, self.running_var)


def _identity_reduce(sums: Tensor) -> Tensor:
    return sums


@NORM.register("none")
class NoNorm(nn.Module):
    """No norm: the identity.

    Equation: y = x
    When: to measure the effect of norms; deep stacks without one hardly train
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(..., C) -> the same."""
        return x


class _RMSNormFunction(torch.autograd.Function):
    """RMS norm with its own backward pass.

    The CPU has no fused kernel, and autograd would save four tensors of x's size, not one.
    """

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
