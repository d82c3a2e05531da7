import pytest
import torch
from tests.nn.model_helpers import randomize
from torch import nn

from polyhead.core.choice import Choice
from polyhead.core.registry import NORM
from polyhead.nn.norm import BatchNorm, LayerNorm, RMSNorm


def rms(x, weight, eps):
    """Zhang & Sennrich (2019), eq. 4, with eps where torch has it."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def compute_gradients(norm, x, gradient):
    norm.zero_grad()
    leaf = x.clone().requires_grad_()
    y = norm(leaf)
    y.backward(gradient)
    return y, leaf.grad, norm.weight.grad.clone()


def test_layernorm_and_rmsnorm_without_weight():
    norm = randomize(LayerNorm(5, eps=0.01), 1).double()
    x = torch.randn(2, 3, 5, dtype=torch.double) * 2 + 1
    mean = x.sum(-1, keepdim=True) / 5
    variance = (x - mean).square().sum(-1, keepdim=True) / 5
    torch.testing.assert_close(norm(x), (x - mean) / (variance + 0.01) ** 0.5 * norm.weight + norm.bias)
    assert LayerNorm(5, bias=False).bias is None
    norm, x, g = RMSNorm(4, weight=False), torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    expected = rms(x, 1, 1e-6)
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(torch.autograd.grad(norm(x), x, g), torch.autograd.grad(expected, x, g))
    assert not list(norm.parameters()) and not norm.state_dict()
    x = torch.randn(3, 8).bfloat16()
    dtypes = [y.dtype for y in compute_gradients(RMSNorm(8), x, torch.ones_like(x))]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32]
    x = torch.randn(2, 4, requires_grad=True)
    (g,) = torch.autograd.grad(RMSNorm(4)(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rmsnorm_equals_the_formula(shape, eps):
    norm = randomize(RMSNorm(4, eps=eps), 1).double()
    x = torch.randn(shape, dtype=torch.double, requires_grad=True)
    torch.testing.assert_close(norm(x), rms(x, norm.weight, eps))
    call = torch.func.functional_call
    assert torch.autograd.gradcheck(lambda x, w: call(norm, {"weight": w}, x), (x, norm.weight))
    with torch.no_grad():
        torch.testing.assert_close(norm(x), rms(x, norm.weight, eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("zero_centered", [False, True])
def test_rmsnorm_equals_that_of_torch_or_gemma(zero_centered, dtype):
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    norm = RMSNorm(32, eps=1e-3, zero_centered=zero_centered)
    expected = (gemma.Gemma2RMSNorm if zero_centered else nn.RMSNorm)(32, eps=1e-3)
    assert (norm.weight == (0 if zero_centered else 1)).all()
    for one in (norm, expected):
        one.weight.data.copy_(torch.linspace(-0.5, 0.5, 32))
    if not zero_centered:  # Gemma keeps weights in fp32
        norm, expected = norm.to(dtype), expected.to(dtype)
    x, gradient = torch.randn(2, 2, 5, 32).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    results = compute_gradients(norm, x, gradient), compute_gradients(expected, x, gradient)
    for a, b in zip(*results, strict=True):
        assert zero_centered or a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NORM.names())
def test_zero_and_huge_tokens_stay_finite(name):
    x = torch.stack([torch.zeros(8), torch.full((8,), 1e15), torch.arange(8.0) * 1e-20]).requires_grad_()
    y = NORM.build(Choice(name), 8)(x)
    (y * torch.arange(8.0)).sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()


LENGTHS = torch.tensor([5, 0, 3, 1])
RAGGED_POS = torch.arange(5).expand(4, 5).masked_fill(torch.arange(5) >= LENGTHS[:, None], -1)
HOLES = torch.tensor([[0, -1, 1, 2, -1], [-1, -1, -1, 0, 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("pos", [None, RAGGED_POS, HOLES], ids=["full", "ragged", "holes"])
@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_batchnorm_equals_that_of_torch_on_the_tokens(pos, momentum, dtype):
    norm = randomize(BatchNorm(6, eps=0.01, momentum=momentum), 1).to(dtype)
    expected = randomize(nn.BatchNorm1d(6, eps=0.01, momentum=momentum), 1).to(dtype)
    rows = 4 if pos is None else len(pos)
    is_token = torch.ones(rows, 5, dtype=torch.bool) if pos is None else pos >= 0
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    for batch in range(3):
        x = (torch.randn(rows, 5, 6, dtype=dtype) * (batch + 1) + batch).requires_grad_()
        tokens, g = x[is_token].detach().requires_grad_(), torch.randn(rows, 5, 6, dtype=dtype)[is_token]
        y, expected_y = norm(x, pos), expected(tokens)
        torch.testing.assert_close(y[is_token], expected_y, **tolerance)
        gradients = torch.autograd.grad(y[is_token], (x, norm.weight, norm.bias), g)
        expected_gradients = torch.autograd.grad(expected_y, (tokens, expected.weight, expected.bias), g)
        torch.testing.assert_close(gradients[0][is_token], expected_gradients[0], **tolerance)
        assert (gradients[0][~is_token] == 0).all()
        torch.testing.assert_close(gradients[1:], expected_gradients[1:], **tolerance)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(norm, name), getattr(expected, name), **tolerance)
    x = torch.randn(rows, 5, 6, dtype=dtype)
    expected_y = expected.eval()(x.flatten(0, 1)).view_as(x)
    torch.testing.assert_close(norm.eval()(x, pos), expected_y, **tolerance)


def test_padding_is_not_in_batch_statistics():
    x, results = torch.randn(4, 5, 6), []
    for filler in (0.0, 7.0, 1e30):
        norm, is_token = BatchNorm(6), RAGGED_POS >= 0
        y = norm(x.masked_fill(~is_token[:, :, None], filler).requires_grad_(), RAGGED_POS)[is_token]
        y.square().sum().backward()
        results.append((y, norm.running_mean, norm.running_var, norm.weight.grad))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_batch_without_variance_uses_running_statistics(n_tokens):
    norm, mean, var = BatchNorm(3), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    norm.running_mean.copy_(mean), norm.running_var.copy_(var)
    x = torch.randn(2, 4, 3, requires_grad=True)
    pos = torch.full((2, 4), -1)
    pos[0, :n_tokens] = torch.arange(n_tokens)
    output = norm(x, pos)
    torch.testing.assert_close(output, (x - mean) / (var + norm.eps).sqrt())
    output.square().sum().backward()
    assert x.grad.isfinite().all()
    assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)


def test_batchnorm_statistics_are_fp32_and_finite():
    """As under autocast, far from 0, where the squares of bf16 would be noise."""
    x = (torch.randn(4, 5, 6) + 20).bfloat16()
    low, exact = BatchNorm(6), BatchNorm(6).double()
    y, expected = low(x, RAGGED_POS), exact(x.double(), RAGGED_POS)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(low.running_var.double(), exact.running_var, rtol=1e-5, atol=0)
    error = float((expected - y.double())[RAGGED_POS >= 0].detach().abs().max())
    assert error < 0.3  # the rounding of 20 to 8 bits
    norm = BatchNorm(3, momentum=0.5)
    norm(torch.tensor([[[1.0, float("inf"), 3.0], [3.0, 4.0, float("nan")]]]))
    assert norm.running_mean.tolist() == [1.0, 0.0, 0.0] and norm.running_var.tolist() == [1.5, 1.0, 1.0]
