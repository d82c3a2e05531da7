"""Similarities of kernel attention: (..., T, D), (..., S, D) -> (..., T, S), none of them negative.

One of one's own is a function as well, ``my_pkg.mine:sim``.
"""

from __future__ import annotations

from torch import Tensor

from polyhead.nn import feature_map
from polyhead.registry import SIMILARITY


@SIMILARITY.register("exp")
def exp(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of softmax attention, written out: it overflows where the exponent is above 88.

    Equation: sim(q, k) = exp(q . k / sqrt(D))
    Paper: Vaswani et al., 2017, eq. 1, as a kernel in Tsai et al., 2019
    When: to compare with; attention softmax is the same, faster and safe from overflow
    """
    return (q * q.size(-1) ** -0.5 @ k.mT).exp()


@SIMILARITY.register("square")
def square(q: Tensor, k: Tensor) -> Tensor:
    """The polynomial kernel of degree 2: opposite directions are as similar as equal ones, right angles not at all.

    A row's first queries may find nothing but rounding to divide: give attention eps: 1 with it.

    Equation: sim(q, k) = (q . k)^2
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: to compare with linear attention over feature_map square, which is the same
    Recipe: model: {attention: {name: kernel, sim: square, eps: 1.0}}
    """
    return (q @ k.mT).square()


@SIMILARITY.register("elu")
def elu(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of linear attention.

    Equation: sim(q, k) = phi(q) . phi(k), phi(x) = elu(x) + 1
    Paper: Katharopoulos et al., 2020, eq. 7
    When: linear attention over a text so short that its pairs cost less, or whose keys a cache should keep
    """
    return feature_map.elu(q) @ feature_map.elu(k).mT


@SIMILARITY.register("relu")
def relu(q: Tensor, k: Tensor) -> Tensor:
    """The kernel of linear attention with sparse features.

    Equation: sim(q, k) = phi(q) . phi(k), phi(x) = max(0, x)
    Paper: Katharopoulos et al., 2020, sec. 3.2.1
    When: to compare with
    """
    return feature_map.relu(q) @ feature_map.relu(k).mT
