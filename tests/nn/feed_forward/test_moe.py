import math

import pytest
import torch
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.registry import FEED_FORWARD
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.nn.feed_forward.moe import BALANCE_GRAD_SCALE, Router, can_group
from polyhead.nn.lora import LoraLinear


def build_moe(d_model=6, d_ff=10, **options):
    torch.manual_seed(0)
    return FEED_FORWARD.build(Choice("moe", **options), d_model, d_ff).double()


def draw(*shape):
    return torch.randn(*shape, 6, dtype=torch.double)


def reference(ffn, x):
    rows, router = [], ffn.router.weight.detach()
    for token in x.flatten(0, -2):
        exps = [math.exp(token @ w) for w in router]
        p = [e / sum(exps) for e in exps]
        bias = [0.0] * len(p) if ffn.balance is None else ffn.balance.tolist()
        best = sorted(range(len(p)), key=lambda i: -(p[i] + bias[i]))[: ffn.top_k]
        norm = sum(p[i] for i in best) if ffn.normalize else 1.0
        rows.append(sum(p[i] / norm * ffn.experts[i](token[None])[0] for i in best))
    return torch.stack(rows).view_as(x)


OPTIONS = [{"n_experts": 4, "top_k": 2}, {"n_experts": 4, "top_k": 2, "normalize": False}]
OPTIONS += [{"n_experts": 5, "top_k": 1, "normalize": False, "balance": False}, {"n_experts": 1, "top_k": 1}]


@pytest.mark.parametrize("expert", ["relu", "swiglu", "conv1x1"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_output_is_the_weighted_sum_of_selected_experts(expert, options):
    ffn, x = build_moe(expert=expert, **options), draw(2, 7)
    if ffn.balance is not None:
        ffn.balance.data.uniform_(-0.2, 0.2)
    torch.testing.assert_close(ffn(x), reference(ffn, x), rtol=0, atol=1e-9)


def test_gradients_equal_those_of_a_dense_mixture():
    ffn = build_moe(n_experts=4, top_k=2, expert="swiglu", balance=False)
    x, weight = draw(9).requires_grad_(), draw(9)

    def dense(x):
        p = (x @ ffn.router.weight.T).softmax(-1)
        p = p * torch.zeros_like(p).scatter(1, p.topk(2, -1).indices, 1.0)
        p = p / p.sum(-1, keepdim=True)
        return sum(p[:, i, None] * expert(x) for i, expert in enumerate(ffn.experts))

    leaves = [x, *ffn.parameters()]
    gradients = (torch.autograd.grad((f(x) * weight).sum(), leaves) for f in (ffn, dense))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_balance_gradient_is_the_load_above_mean():
    ffn, x = build_moe(n_experts=4, top_k=2), draw(50)
    ffn(x).sum().backward()
    experts, _ = ffn.route(x)
    loads = torch.tensor([float((experts == i).any(-1).double().mean()) for i in range(4)]).double()
    torch.testing.assert_close(ffn.balance.grad, BALANCE_GRAD_SCALE * (loads - 0.5))
    assert ffn.balance.grad.sum().abs() < 1e-12 and ffn.balance.grad[loads.argmax()] > 0
    ffn, x = build_moe(n_experts=4, top_k=2), draw(50)
    ffn(x).sum().backward()
    expected, total = ffn.balance.grad, 0
    ffn.calls_idle_experts = True
    ffn.all_reduce_count = lambda count: 50
    for shard in (x[:41], x[41:], x[:0]):
        ffn.zero_grad(set_to_none=True)
        ffn(shard).sum().backward()
        total = total + ffn.balance.grad
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("expert", [name for name in FEED_FORWARD.names() if name != "moe"])
def test_idle_expert_has_zero_gradients(expert):
    """Ranks that add up gradients must have those of the same weights, whatever their tokens are."""
    ffn = build_moe(n_experts=4, top_k=2, expert=expert)
    ffn.calls_idle_experts = True
    ffn.balance.data[:2] = 10.0  # the others are never selected
    for tokens in (draw(5).requires_grad_(), draw(0)):
        ffn.zero_grad(set_to_none=True)
        output = ffn(tokens)
        assert output.shape == tokens.shape
        output.square().sum().backward()
        for name, p in ffn.named_parameters():
            is_idle = not len(tokens) or name.startswith(("experts.2", "experts.3"))
            assert p.grad is not None and bool(p.grad.any()) != is_idle, name


def build_decoder(**changes):
    sizes = {"kind": "decoder", "vocab_size": 64, "d_model": 64, "n_heads": 2, "n_layers": 2, "d_ff": 64}
    ffn = {"name": "moe", "n_experts": 4, **changes}
    return build(ModelConfig(**sizes, feed_forward=ffn), seed=1).eval()


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-5), ("int8", 0.05), ("int4", 0.25)])
@torch.inference_mode()
def test_packed_model_keeps_its_routers(dtype, tolerance):
    expected = build_decoder()(tokens := torch.randint(0, 64, (3, 9)))
    packed = pack_model(build_decoder(), linear_factory(dtype))
    assert (packed(tokens) - expected).norm() < tolerance * expected.norm()
    assert sum(isinstance(part, Router) for part in packed.modules()) == 2
    assert not any(type(part) is nn.Linear for part in packed.modules())


def test_scores_are_fp32_and_adapters_not_grouped():
    """Grouped products would ignore the adapters."""
    ffn, x = build_moe(n_experts=4).to(torch.bfloat16), draw(40).bfloat16()
    assert ffn.router(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        scores = ffn.router(x)
    expected = (x.double() @ ffn.router.weight.double().T).softmax(-1).float()
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    assert ffn(x).dtype == torch.bfloat16
    mixture, x = build_moe(16, 32, n_experts=4).bfloat16(), torch.randn(6, 16, dtype=torch.bfloat16)
    assert can_group(list(mixture.experts), x)
    for expert in mixture.experts:
        adapter = LoraLinear(expert.up_proj, 2, alpha=8.0, dropout=0.0, generator=torch.Generator())
        nn.init.normal_(adapter.lora_b)
        expert.up_proj = adapter
    assert not can_group(list(mixture.experts), x)
    actual, expected = mixture._apply_unread(x, None), mixture.apply_experts(x)
    assert (actual - expected).norm() < 0.02 * expected.norm()
