"""Tests of nn/feature_map.py."""

from __future__ import annotations

import pytest
import torch
from tests.nn.linear_helpers import PHI, equal

from polyhead.core.registry import FEATURE_MAP


@pytest.mark.parametrize("name", FEATURE_MAP.names())
def test_features_are_not_negative_and_have_the_product_of_the_definition(name):
    phi, x, y = FEATURE_MAP.get(name), *torch.randn(2, 50, 5, dtype=torch.double).unbind(0)
    equal((phi(x) * phi(y)).sum(-1), (PHI[name](x) * PHI[name](y)).sum(-1))
    assert ((phi(x) @ phi(y).mT) >= 0).all()
    assert phi(x).shape == (50, 15 if name == "square" else 5)


def test_elu_is_exact_far_below_zero_and_has_the_gradient_of_elu():
    x = torch.linspace(-60, 40, 301).requires_grad_()
    phi = FEATURE_MAP.get("elu")
    torch.testing.assert_close(phi(x), torch.where(x > 0, x + 1, x.exp()), rtol=1e-6, atol=0)
    (got,) = torch.autograd.grad((phi(x) * x.detach()).sum(), x)
    (wanted,) = torch.autograd.grad((torch.nn.functional.elu(x) * x.detach()).sum(), x)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-30)
