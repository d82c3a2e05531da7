"""Similarities of kernel attention: (..., T, D), (..., S, D) -> (..., T, S), non-negative.

A custom similarity is a function as well, ``my_pkg.mine:sim``.
"""

from __future__ import annotations

from torch import Tensor

from polyhead.core.registry import SIMILARITY
from polyhead.nn import feature_map


@SIMILARITY.register("exp")
def exp_similarity(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of softmax attention, computed directly: it overflows for exponents above 88.

    Equation: sim(q, k) = exp(q . k / sqrt(D))
    Paper: Vaswani et al., 2017, eq. 1, as a kernel in Tsai et al., 2019
    When: for comparison; attention softmax is the same, faster and safe from overflow
    """
    return (q * q.size(-1) ** -0.5 @ k.mT).exp()


@SIMILARITY.register("square")
def square_similarity(q: Tensor, k: Tensor) -> Tensor:
    """The polynomial kernel of degree 2: it ignores the sign of the product.

    Opposite vectors are as similar as equal ones, and orthogonal ones have similarity 0, so the first queries
    of a row may divide mere rounding errors: use eps: 1 in attention with it.

    Equation: sim(q, k) = (q . k)^2
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: to compare with linear attention over feature_map square, which is the same
    Recipe: model: {attention: {name: kernel, sim: square, eps: 1.0}}
    """
    return (q @ k.mT).square()


@SIMILARITY.register("elu")
def elu_similarity(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of linear attention.

    Equation: sim(q, k) = phi(q) . phi(k), phi(x) = elu(x) + 1
    Paper: Katharopoulos et al., 2020, eq. 7
    When: linear attention on texts so short that all pairs cost less, or whose keys a cache should store
    """
    return feature_map.elu_features(q) @ feature_map.elu_features(k).mT


@SIMILARITY.register("relu")
def relu_similarity(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of linear attention with sparse features.

    Equation: sim(q, k) = phi(q) . phi(k), phi(x) = max(0, x)
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: for comparison
    """
    return feature_map.relu_features(q) @ feature_map.relu_features(k).mT
