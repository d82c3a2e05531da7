"""Mixtures of experts against their formula, token by token, and what keeps their loads even."""

import math

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import FEED_FORWARD
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build
from polyhead.nn.feed_forward.grouped_experts import can_group
from polyhead.nn.feed_forward.moe import BALANCE_GRAD_SCALE, MixtureOfExperts, Router
from polyhead.nn.lora import LoraLinear


def experts(**options):
    torch.manual_seed(0)
    return FEED_FORWARD.build(Choice("moe", **options), 6, 10).double()


def by_hand(ffn, x):
    """The sum over the picked experts, one token at a time, from the scores up."""
    rows, router = [], ffn.router.weight.detach()
    for token in x.flatten(0, -2):
        exps = [math.exp(token @ w) for w in router]
        p = [e / sum(exps) for e in exps]
        b = [0.0] * len(p) if ffn.balance is None else ffn.balance.tolist()
        best = sorted(range(len(p)), key=lambda i: -(p[i] + b[i]))[: ffn.top_k]
        norm = sum(p[i] for i in best) if ffn.normalize else 1.0
        rows.append(sum(p[i] / norm * ffn.experts[i](token[None])[0] for i in best))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("each", ["relu", "swiglu", "conv1x1"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_experts": 4, "top_k": 2},
        {"n_experts": 4, "top_k": 2, "normalize": False},
        {"n_experts": 5, "top_k": 1, "normalize": False, "balance": False},
        {"n_experts": 3, "top_k": 3},
        {"n_experts": 1, "top_k": 1},
    ],
    ids=str,
)
def test_experts_are_the_weighted_sum_of_those_that_are_picked(each, options):
    ffn = experts(expert=each, **options)
    if ffn.balance is not None:
        ffn.balance.data.uniform_(-0.2, 0.2)
    x = torch.randn(2, 7, 6, dtype=torch.double)
    torch.testing.assert_close(ffn(x), by_hand(ffn, x), rtol=0, atol=1e-9)


def test_gradients_are_those_of_all_experts_weighed_by_zero_where_not_picked():
    ffn = experts(n_experts=4, top_k=2, expert="swiglu", balance=False)
    x = torch.randn(9, 6, dtype=torch.double, requires_grad=True)
    wanted_by = torch.randn(9, 6, dtype=torch.double)

    def dense(x):
        p = (x @ ffn.router.weight.T).softmax(-1)
        p = p * torch.zeros_like(p).scatter(1, p.topk(2, -1).indices, 1.0)
        p = p / p.sum(-1, keepdim=True)
        return sum(p[:, i, None] * expert(x) for i, expert in enumerate(ffn.experts))

    leaves = [x, *ffn.parameters()]
    found = torch.autograd.grad((ffn(x) * wanted_by).sum(), leaves)
    wanted = torch.autograd.grad((dense(x) * wanted_by).sum(), leaves)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_bias_decides_who_is_picked_and_not_how_much_he_counts():
    ffn = experts(n_experts=4, top_k=2)
    x = torch.randn(30, 6, dtype=torch.double)
    ffn.balance.data[3] = 10.0  # wanted by all
    picked, weights = ffn.route(x)
    assert (picked == 3).any(-1).all()
    scores = ffn.router(x)
    torch.testing.assert_close(
        weights, scores.gather(1, picked) / scores.gather(1, picked).sum(-1, keepdim=True)
    )


def test_the_gradient_of_the_bias_is_the_load_above_the_mean():
    ffn = experts(n_experts=4, top_k=2)
    x = torch.randn(50, 6, dtype=torch.double)
    ffn(x).sum().backward()
    picked, _ = ffn.route(x)
    loads = [float((picked == i).any(-1).double().mean()) for i in range(4)]
    wanted = BALANCE_GRAD_SCALE * (torch.tensor(loads).double() - 0.5)
    torch.testing.assert_close(ffn.balance.grad, wanted)
    assert ffn.balance.grad.sum().abs() < 1e-12


@pytest.mark.parametrize("each", [name for name in FEED_FORWARD.names() if name != "moe"])
def test_an_expert_without_tokens_has_a_gradient_of_zero(each):
    """Ranks that add up gradients must have those of the same weights, whatever their tokens are."""
    ffn = experts(n_experts=4, top_k=2, expert=each)
    ffn.calls_idle_experts = True
    ffn.balance.data[:2] = 10.0  # the others are never picked
    for tokens in (torch.randn(5, 6, dtype=torch.double, requires_grad=True), torch.zeros(0, 6).double()):
        ffn.zero_grad(set_to_none=True)
        out = ffn(tokens)
        assert out.shape == tokens.shape
        out.square().sum().backward()
        for name, p in ffn.named_parameters():
            idle = not len(tokens) or name.startswith(("experts.2", "experts.3"))
            assert p.grad is not None and bool(p.grad.any()) != idle, name


def test_the_balance_of_shards_adds_up_to_that_of_the_whole():
    """As three ranks see it, the last of them without tokens."""
    ffn = experts(n_experts=4, top_k=2)
    x = torch.randn(50, 6, dtype=torch.double)
    ffn(x).sum().backward()
    whole, total = ffn.balance.grad, 0
    ffn.calls_idle_experts = True
    ffn.all_reduce_count = lambda count: 50
    for shard in (x[:41], x[41:], x[:0]):
        ffn.zero_grad(set_to_none=True)
        ffn(shard).sum().backward()
        total = total + ffn.balance.grad
    assert whole.abs().max() > 1e-5
    torch.testing.assert_close(total, whole, rtol=0, atol=1e-9)


def test_crowded_experts_are_relieved():
    """Tokens of one direction, which all want the same experts: with the bias the loads come together."""
    spread = {}
    for balance in (False, True):
        ffn = experts(n_experts=8, top_k=2, balance=balance).float()
        optimizer = torch.optim.AdamW(ffn.parameters(), lr=3e-3, weight_decay=0.0)
        draw = torch.Generator().manual_seed(1)
        for _ in range(150):
            x = torch.randn(64, 6, generator=draw) + 3
            (ffn(x) - x.flip(-1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        loads = ffn.route(torch.randn(2000, 6, generator=draw) + 3)[0].flatten().bincount(minlength=8) / 4000
        spread[balance] = float(loads.max())
    assert spread[False] > 0.4  # of all that is picked; an even share is 0.125
    assert spread[True] < 0.25


def test_a_text_alone_means_what_it_means_among_others():
    model = build(
        ModelConfig(
            kind="decoder",
            vocab_size=11,
            d_model=16,
            n_heads=2,
            n_layers=2,
            d_ff=8,
            feed_forward={"name": "moe", "n_experts": 4, "expert": "swiglu"},
        ),
        seed=1,
    ).eval()
    tokens = torch.randint(0, 11, (5, 9))
    torch.testing.assert_close(model(tokens)[2:3], model(tokens[2:3]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "off"), [("fp32", 1e-5), ("int8", 0.05), ("int4", 0.25)])
def test_a_packed_model_routes_as_it_learned_to(dtype, off):
    config = ModelConfig(
        kind="decoder",
        vocab_size=64,
        d_model=64,
        n_heads=2,
        n_layers=2,
        d_ff=64,
        feed_forward={"name": "moe", "n_experts": 4},
    )
    model, same = build(config, seed=1).eval(), build(config, seed=1).eval()
    fast = pack_model(same, linear_factory(dtype))
    tokens = torch.randint(0, 64, (3, 9))
    with torch.inference_mode():
        wanted, found = model(tokens), fast(tokens)
    assert (found - wanted).norm() < off * wanted.norm()
    assert sum(isinstance(part, Router) for part in fast.modules()) == 2
    assert not any(type(part) is torch.nn.Linear for part in fast.modules())


def test_scores_are_exact_in_half_precision():
    ffn = experts(n_experts=4).to(torch.bfloat16)
    x = torch.randn(40, 6, dtype=torch.bfloat16)
    assert ffn.router(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        scores = ffn.router(x)
    torch.testing.assert_close(
        scores, (x.double() @ ffn.router.weight.double().T).softmax(-1).float(), rtol=0, atol=1e-6
    )
    assert ffn(x).dtype == torch.bfloat16


def test_dropout_reaches_every_expert():
    ffn = MixtureOfExperts(4, 8, n_experts=3, dropout=0.25)
    assert [part.dropout.p for part in ffn.experts] == [0.25] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_k": 9}, "from 1 to n_experts=8, not 9"),
        ({"top_k": 0}, "from 1 to n_experts=8, not 0"),
        ({"top_k": 1}, "normalize: false"),
        ({"expert": "moe"}, "must not be 'moe' themselves"),
        ({"expert": "swigul"}, "did you mean 'swiglu'"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        experts(**options)


def test_adapters_of_experts_count_in_bf16() -> None:
    """Grouped products read the weights of the maps alone."""
    torch.manual_seed(0)
    mixture = FEED_FORWARD.build(Choice("moe", n_experts=4), 16, 32).bfloat16()
    x = torch.randn(6, 16, dtype=torch.bfloat16)
    assert can_group(list(mixture.experts), x)
    for expert in mixture.experts:
        adapter = LoraLinear(expert.up_proj, 2, alpha=8.0, dropout=0.0, generator=torch.Generator())
        nn.init.normal_(adapter.lora_b)
        expert.up_proj = adapter
    assert not can_group(list(mixture.experts), x)
    found, wanted = mixture._apply_unread(x, None), mixture.apply_experts(x)
    assert (found - wanted).norm() < 0.02 * wanted.norm()
