import pytest
import torch
from tests.nn.linear_helpers import PHI, assert_close

from polyhead.core.registry import FEATURE_MAP


@pytest.mark.parametrize("name", FEATURE_MAP.names())
def test_products_of_features_equal_the_definition(name):
    phi, x, y = FEATURE_MAP.get(name), *torch.randn(2, 50, 5, dtype=torch.double).unbind(0)
    assert_close((phi(x) * phi(y)).sum(-1), (PHI[name](x) * PHI[name](y)).sum(-1))
    assert ((phi(x) @ phi(y).mT) >= 0).all() and phi(x).shape == (50, 15 if name == "square" else 5)


def test_elu_is_exact_far_below_zero():
    x = torch.linspace(-60, 40, 301).requires_grad_()
    phi = FEATURE_MAP.get("elu")
    torch.testing.assert_close(phi(x), torch.where(x > 0, x + 1, x.exp()), rtol=1e-6, atol=0)
    (actual,) = torch.autograd.grad((phi(x) * x.detach()).sum(), x)
    (expected,) = torch.autograd.grad((torch.nn.functional.elu(x) * x.detach()).sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-30)
