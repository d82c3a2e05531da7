"""Feature maps phi of linear attention, (..., D) -> (..., P): phi(q) . phi(k) replaces exp(q . k).

A custom map is a function as well, ``my_pkg.mine:map``; features must not be negative, since attention
divides by the sum of the products, and with rope they must be above 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyhead.core.registry import FEATURE_MAP


@FEATURE_MAP.register("elu")
def elu_features(x: Tensor) -> Tensor:
    """The default: positive everywhere, so no feature and no gradient vanishes.

    Equation: phi(x) = elu(x) + 1, P = D
    Paper: Katharopoulos et al., 2020, eq. 7
    When: a good first choice, and the one to combine with rope
    """
    features: Tensor = _EluFunction.apply(x)
    return features


@FEATURE_MAP.register("relu")
def relu_features(x: Tensor) -> Tensor:
    """Sparse features: cheap, but zeros get no gradient, and a query may match no key at all.

    Equation: phi(x) = max(0, x), P = D
    Paper: Katharopoulos et al., 2020, sec. 3.2.1, which prefers elu
    When: for comparison; not with rope
    """
    return F.relu(x)


@FEATURE_MAP.register("square")
def square_features(x: Tensor) -> Tensor:
    """All products of two features, which make the polynomial kernel of degree 2 linear.

    A product of two different features counts for both orders, hence its weight sqrt(2). Orthogonal vectors
    have similarity 0, so the first queries of a row may divide mere rounding errors: use eps: 1 in attention
    with it.

    Equation: phi(x) = (x_i^2, sqrt(2) x_i x_j for i < j), P = D (D + 1) / 2; phi(x) . phi(y) = (x . y)^2
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: sharper weights are worth (D + 1) / 2 times the state and the work
    Recipe: model: {attention: {name: linear, feature_map: square, eps: 1.0}}
    """
    i, j = torch.triu_indices(x.size(-1), x.size(-1), device=x.device)
    weight = (2 - (i == j).to(x.dtype)).sqrt()
    return x[..., i] * x[..., j] * weight


class _EluFunction(torch.autograd.Function):
    """max(x, 0) + exp(min(x, 0)): elu(x) + 1 would round to 0 below -16; backward needs only the output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(features)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return features.clamp(max=1).mul_(grad)
