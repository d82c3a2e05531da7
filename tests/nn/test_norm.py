"""Norms against their formulas in double precision."""

import pytest
import torch
from torch import nn

from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.registry import NORM, Choice


def rms(x, weight, eps):
    """Zhang & Sennrich (2019), eq. 4, with eps where torch has it."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_layernorm_centres_each_token_over_its_features_with_biased_variance():
    norm = LayerNorm(5, eps=0.01)
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = torch.randn(2, 3, 5) * 2 + 1
    for b in range(2):
        for t in range(3):
            row = x[b, t].double()
            mean = sum(row) / 5
            variance = sum((v - mean) ** 2 for v in row) / 5
            wanted = (row - mean) / (variance + 0.01) ** 0.5 * norm.weight + norm.bias
            torch.testing.assert_close(norm(x)[b, t].double(), wanted, rtol=1e-5, atol=1e-6)
    assert LayerNorm(5, bias=False).bias is None


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rmsnorm_and_its_gradient_equal_the_formula(shape, eps):
    torch.manual_seed(0)
    norm = RMSNorm(4, eps=eps).double()
    nn.init.normal_(norm.weight)
    x = torch.randn(shape, dtype=torch.double, requires_grad=True)
    y, plain = norm(x), rms(x, norm.weight, eps)
    torch.testing.assert_close(y, plain)
    g = torch.randn(shape, dtype=torch.double)
    mine, theirs = (torch.autograd.grad(out, (x, norm.weight), g) for out in (y, plain))
    torch.testing.assert_close(mine, theirs)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(norm, {"weight": w}, x), (x, norm.weight)
    )
    with torch.no_grad():
        torch.testing.assert_close(norm(x), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rmsnorm_equals_that_of_torch(dtype):
    torch.manual_seed(0)
    mine, theirs = RMSNorm(32).to(dtype), nn.RMSNorm(32, eps=1e-6).to(dtype)
    weight, grad = torch.randn(32).to(dtype), torch.randn(2, 5, 32).to(dtype)
    x, results = torch.randn(2, 5, 32).to(dtype), []
    for norm in (mine, theirs):
        norm.weight.data.copy_(weight)
        leaf = x.clone().requires_grad_()
        y = norm(leaf)
        y.backward(grad)
        results.append((y, leaf.grad, norm.weight.grad))
        assert y.dtype == leaf.grad.dtype == norm.weight.grad.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_rmsnorm_of_half_precision_input_with_fp32_weights_stays_in_half():
    """As under autocast, where activations are bf16 and weights are not."""
    norm, x = RMSNorm(8), torch.randn(3, 8).bfloat16().requires_grad_()
    norm(x).sum().backward()
    assert norm(x).dtype == x.grad.dtype == torch.bfloat16
    assert norm.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("name", NORM.names())
def test_a_token_of_zeros_and_huge_tokens_stay_finite(name):
    norm = NORM.build(Choice(name), 8)
    x = torch.stack([torch.zeros(8), torch.full((8,), 1e15), torch.arange(8.0) * 1e-20]).requires_grad_()
    y = norm(x)
    (y * torch.arange(8.0)).sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_second_derivative_of_rmsnorm_is_refused_rather_than_wrong():
    x = torch.randn(2, 4, requires_grad=True)
    (g,) = torch.autograd.grad(RMSNorm(4)(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()
