"""Norms against their formulas in double precision."""

import pytest
import torch
from torch import nn

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import NORM
from polyhead.nn.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm


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


def test_rmsnorm_without_a_weight_learns_nothing():
    norm, x = RMSNorm(4, weight=False), torch.randn(3, 4, requires_grad=True)
    wanted = rms(x, 1, 1e-6)
    torch.testing.assert_close(norm(x), wanted)
    g = torch.randn(3, 4)
    torch.testing.assert_close(torch.autograd.grad(norm(x), x, g), torch.autograd.grad(wanted, x, g))
    assert not list(norm.parameters()) and not norm.state_dict()
    with pytest.raises(UserError, match="zero_centered of rmsnorm requires a weight"):
        RMSNorm(4, weight=False, zero_centered=True)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rmsnorm_around_one_is_that_of_gemma(dtype):
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    torch.manual_seed(0)
    mine, theirs = RMSNorm(32, eps=1e-3, zero_centered=True), gemma.Gemma2RMSNorm(32, eps=1e-3)
    x, grad, results = torch.randn(2, 5, 32).to(dtype), torch.randn(2, 5, 32).to(dtype), []
    assert (mine.weight == 0).all()
    for norm in (mine, theirs):
        norm.weight.data.copy_(torch.linspace(-0.5, 0.5, 32))
        leaf = x.clone().requires_grad_()
        y = norm(leaf)
        y.backward(grad)
        results.append((y, leaf.grad, norm.weight.grad))
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(mine(x), theirs(x), rtol=tolerance, atol=tolerance)


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


LENGTHS = torch.tensor([5, 0, 3, 1])
RAGGED = torch.arange(5).expand(4, 5).masked_fill(torch.arange(5) >= LENGTHS[:, None], -1)
HOLES = torch.tensor([[0, -1, 1, 2, -1], [-1, -1, -1, 0, 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("pos", [None, RAGGED, HOLES], ids=["whole", "ragged", "holes"])
@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0])
def test_batchnorm_is_that_of_torch_on_the_tokens_alone(pos, momentum, dtype):
    """Output, gradients, running statistics over several batches, and evaluation with those."""
    torch.manual_seed(0)
    mine = BatchNorm(6, eps=0.01, momentum=momentum).to(dtype)
    theirs = nn.BatchNorm1d(6, eps=0.01, momentum=momentum).to(dtype)
    for norm in (mine, theirs):
        torch.manual_seed(1)
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    rows = 4 if pos is None else len(pos)
    seen = torch.ones(rows, 5, dtype=torch.bool) if pos is None else pos >= 0
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    for batch in range(3):
        x = torch.randn(rows, 5, 6, dtype=dtype) * (batch + 1) + batch
        x, plain, g = (
            x.requires_grad_(),
            x[seen].detach().requires_grad_(),
            torch.randn(rows, 5, 6, dtype=dtype),
        )
        y, wanted = mine(x, pos), theirs(plain)
        torch.testing.assert_close(y[seen], wanted, **tolerance)
        ours = torch.autograd.grad(y[seen], (x, mine.weight, mine.bias), g[seen])
        others = torch.autograd.grad(wanted, (plain, theirs.weight, theirs.bias), g[seen])
        torch.testing.assert_close(ours[0][seen], others[0], **tolerance)
        assert (ours[0][~seen] == 0).all()
        torch.testing.assert_close(ours[1:], others[1:], **tolerance)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), **tolerance)
    x = torch.randn(rows, 5, 6, dtype=dtype)
    torch.testing.assert_close(mine.eval()(x, pos), theirs.eval()(x.flatten(0, 1)).view_as(x), **tolerance)


def test_what_padding_holds_never_enters_the_statistics():
    torch.manual_seed(0)
    x, outs = torch.randn(4, 5, 6), []
    for filler in (0.0, 7.0, 1e30):
        norm = BatchNorm(6)
        y = norm(x.masked_fill((RAGGED < 0)[:, :, None], filler).requires_grad_(), RAGGED)[RAGGED >= 0]
        y.square().sum().backward()
        outs.append((y, norm.running_mean, norm.running_var, norm.weight.grad))
    for other in outs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outs[0], other, strict=True))


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_tokens_have_no_spread_and_get_the_running_statistics(n):
    norm = BatchNorm(3, eps=0.0)
    norm.running_mean.fill_(1.0), norm.running_var.fill_(4.0)
    pos = torch.tensor([[0, -1]]) if n else torch.tensor([[-1, -1]])
    y = norm(torch.full((1, 2, 3), 5.0), pos)
    assert (y == 2.0).all()
    assert (norm.running_mean == 1.0).all()
    assert (norm.running_var == 4.0).all()


def test_batchnorm_counts_in_fp32_and_answers_in_the_precision_it_is_asked_in():
    """As under autocast, far from 0, where the squares of bf16 would be noise."""
    torch.manual_seed(0)
    x = (torch.randn(4, 5, 6) + 20).bfloat16()
    low, exact = BatchNorm(6), BatchNorm(6).double()
    y, wanted = low(x, RAGGED), exact(x.double(), RAGGED)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(low.running_var.double(), exact.running_var, rtol=1e-5, atol=0)
    spread = float((wanted - y.double())[RAGGED >= 0].detach().abs().max())
    assert spread < 0.2, "the rounding of 20 to 8 bits, and no more"


def test_a_step_that_is_not_finite_leaves_no_trace_in_the_running_statistics():
    norm = BatchNorm(3, momentum=0.5)
    x = torch.tensor([[[1.0, float("inf"), 3.0], [3.0, 4.0, float("nan")]]])
    norm(x)
    assert norm.running_mean.tolist() == [1.0, 0.0, 0.0]
    assert norm.running_var.tolist() == [1.5, 1.0, 1.0]


@pytest.mark.parametrize("momentum", [0.0, -0.1, 1.5])
def test_a_momentum_that_is_no_weight_is_refused(momentum):
    with pytest.raises(UserError, match=f"momentum of batchnorm must be .* not {momentum}"):
        BatchNorm(3, momentum=momentum)


def test_no_norm_is_what_it_is_given():
    x = torch.randn(2, 3)
    assert NoNorm(3)(x, None) is x
    assert not list(NoNorm(3).parameters())


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_a_batch_without_a_variance_has_the_running_statistics_and_finite_gradients(n_tokens: int) -> None:
    norm = BatchNorm(3).train()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.running_var.copy_(torch.tensor([4.0, 5.0, 6.0]))
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    pos = torch.full((2, 4), -1)
    pos[0, :n_tokens] = torch.arange(n_tokens)
    out = norm(x, pos)
    wanted = (x - torch.tensor([1.0, 2.0, 3.0])) / (torch.tensor([4.0, 5.0, 6.0]) + norm.eps).sqrt()
    torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert norm.running_mean.tolist() == [1.0, 2.0, 3.0]
    assert norm.running_var.tolist() == [4.0, 5.0, 6.0]
