"""Feature maps phi of linear attention, (..., D) -> (..., P): phi(q) . phi(k) is what it takes for exp(q . k).

A map of one's own is a function as well, ``my_pkg.mine:map``; no feature should be negative, for the sum of the
products divides.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polyhead.registry import FEATURE_MAP


@FEATURE_MAP.register("elu")
def elu(x: Tensor) -> Tensor:
    """The plain one: above 0 everywhere, so no feature and no gradient dies.

    Equation: phi(x) = elu(x) + 1, P = D
    Paper: Katharopoulos et al., 2020, eq. 7
    When: a good first choice, and the one to take with rope
    """
    features: Tensor = _Elu.apply(x)
    return features


@FEATURE_MAP.register("relu")
def relu(x: Tensor) -> Tensor:
    """Sparse features: cheap, but those at 0 get no gradient, and a query may match no key at all.

    Equation: phi(x) = max(0, x), P = D
    Paper: Katharopoulos et al., 2020, sec. 3.2.1, where elu is preferred to it
    When: to compare with
    """
    return F.relu(x)


@FEATURE_MAP.register("square")
def square(x: Tensor) -> Tensor:
    """All products of two features, which make the polynomial kernel of degree 2 linear.

    A product of two different features stands for both its orders, hence its weight sqrt(2). Vectors at right angles are
    not similar at all, so a row's first queries may find nothing but rounding to divide: give attention eps: 1 with it.

    Equation: phi(x) = (x_i^2, sqrt(2) x_i x_j for i < j), P = D (D + 1) / 2, so that phi(x) . phi(y) = (x . y)^2
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: sharper weights are worth (D + 1) / 2 times the state and the work
    Recipe: model: {attention: {name: linear, feature_map: square, eps: 1.0}}
    """
    i, j = torch.triu_indices(x.size(-1), x.size(-1), device=x.device)
    weight = (2 - (i == j).to(x.dtype)).sqrt()
    return x[..., i] * x[..., j] * weight


class _Elu(torch.autograd.Function):
    """max(x, 0) + exp(min(x, 0)), for elu(x) + 1 rounds what is below -16 to 0; autograd keeps what it gives alone."""

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
