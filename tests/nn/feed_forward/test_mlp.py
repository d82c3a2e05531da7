"""Each feed-forward layer against its formula in double precision."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import FEED_FORWARD
from polyhead.models import build
from polyhead.nn.feed_forward.mlp import MLPActivation

ACTIVATIONS = {
    "relu": lambda x: max(0.0, x),
    "relu2": lambda x: max(0.0, x) ** 2,
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "prelu": lambda x: x if x > 0 else 0.25 * x,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "glu": lambda x: 1 / (1 + math.exp(-x)),
    "reglu": lambda x: max(0.0, x),
    "geglu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "swiglu": lambda x: x / (1 + math.exp(-x)),
}


def tanh_gelu(x):
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


VARIANTS = [(name, {}, g) for name, g in ACTIVATIONS.items()] + [
    ("leaky_relu", {"slope": 0.3}, lambda x: x if x > 0 else 0.3 * x),
    ("prelu", {"slope": 0.5}, lambda x: x if x > 0 else 0.5 * x),
    ("prelu", {"slope": 0.5, "per_channel": True}, lambda x: x if x > 0 else 0.5 * x),
    ("swiglu", {"beta": 1.702}, lambda x: x / (1 + math.exp(-1.702 * x))),
    ("swiglu", {"beta": 0}, lambda x: x / 2),
    ("swiglu", {"beta": "learned"}, lambda x: x / (1 + math.exp(-x))),
    ("gelu", {"tanh": True}, tanh_gelu),
    ("geglu", {"tanh": True}, tanh_gelu),
    ("conv1x1", {"activation": "gelu_tanh"}, tanh_gelu),
    *(
        ("conv1x1", {"activation": name}, ACTIVATIONS[name])
        for name in ("relu", "leaky_relu", "prelu", "gelu", "silu", "tanh")
    ),
]


def matrix(linear, x):
    """x W + b by loops; a kernel of width 1 is a matrix."""
    rows = linear.weight.flatten(1).tolist()
    bias = [0.0] * len(rows) if linear.bias is None else linear.bias.tolist()
    return [b + sum(a * w for a, w in zip(x, row, strict=True)) for row, b in zip(rows, bias, strict=True)]


GATED = [variant for variant in VARIANTS if variant[0].endswith("glu")]


@pytest.mark.parametrize(
    ("bias", "name", "options", "g"),
    [
        (bias, *variant)
        for bias, of in ((True, VARIANTS), (False, VARIANTS), ("down", GATED))
        for variant in of
    ],
)
def test_feed_forward_is_its_formula_with_the_bias_inside(name, options, g, bias):
    """g(x W1 + b1) W2 + b2, or (g(x Wg + bg) * (x Wu + bu)) Wd + bd, each position alone."""
    torch.manual_seed(0)
    ffn = FEED_FORWARD.build(Choice(name, bias=bias, **options), 4, 6).double()
    for p in ffn.parameters():
        p.data.add_(torch.randn_like(p) if p.ndim < 2 and p.numel() > 1 else 0)
    if options.get("per_channel"):
        ffn.activation.weight.data.fill_(options["slope"])
    x = torch.randn(2, 3, 4, dtype=torch.double)
    out = ffn(x)
    for b in range(2):
        for t in range(3):
            row = x[b, t].tolist()
            up = matrix(ffn.up_proj, row)
            if hasattr(ffn, "gate_proj"):
                inner = [g(a) * u for a, u in zip(matrix(ffn.gate_proj, row), up, strict=True)]
            else:
                inner = [g(u) for u in up]
            assert out[b, t].tolist() == pytest.approx(matrix(ffn.down_proj, inner), abs=1e-9)
    inner = {
        layer.bias is not None for name, layer in ffn.named_children() if name in ("gate_proj", "up_proj")
    }
    assert (inner, ffn.down_proj.bias is not None) == ({bias is True}, bool(bias))


def test_the_way_back_of_a_plain_layer_has_no_bias_of_its_own():
    with pytest.raises(UserError, match="bias of feed_forward 'gelu'"):
        FEED_FORWARD.check(Choice("gelu", bias="down"))


def test_every_registered_feed_forward_has_its_formula_here():
    assert set(FEED_FORWARD.names()) == {name for name, _, _ in VARIANTS} | {"moe"}  # see test_moe.py
    assert {o["activation"] for name, o, _ in VARIANTS if name == "conv1x1"} == set(get_args(MLPActivation))


@pytest.mark.parametrize("activation", get_args(MLPActivation))
def test_convolutions_of_width_one_are_the_plain_layer_with_the_same_weights(activation):
    """Outputs and gradients."""
    torch.manual_seed(0)
    same = Choice("gelu", tanh=True) if activation == "gelu_tanh" else Choice(activation)
    plain = FEED_FORWARD.build(same, 4, 6).double()
    conv = FEED_FORWARD.build(Choice("conv1x1", activation=activation), 4, 6).double()
    conv.load_state_dict({n: p[:, :, None] if p.ndim == 2 else p for n, p in plain.state_dict().items()})
    x, results = torch.randn(2, 5, 4, dtype=torch.double), []
    for ffn in (plain, conv):
        leaf = x.clone().requires_grad_()
        y = ffn(leaf)
        grads = torch.autograd.grad((y * torch.arange(4.0)).sum(), [leaf, *ffn.parameters()])
        results.append([y, *(g.squeeze(-1) if i and g.ndim == 3 else g for i, g in enumerate(grads))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("init", ["xavier", "normal"])
def test_convolutions_begin_with_the_weights_of_the_plain_layer(init):
    made = [
        build(
            ModelConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=1, init=init, feed_forward=ffn), seed=3
        )
        for ffn in ("relu", "conv1x1")
    ]
    weights = [{n: p for n, p in model.named_parameters() if ".ffn." in n} for model in made]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name].view_as(weight)), name


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_feed_forward_is_a_convolution_of_width_one(name):
    """The same weights as 1x1 kernels over (B, C, T)."""
    ffn = FEED_FORWARD.build(Choice(name), 4, 6)
    x = torch.randn(2, 5, 4)

    def conv(linear, x):
        return F.conv1d(x, linear.weight[:, :, None], linear.bias)

    channels = x.mT
    inner = ffn.activation(conv(getattr(ffn, "gate_proj", ffn.up_proj), channels))
    if hasattr(ffn, "gate_proj"):
        inner = inner * conv(ffn.up_proj, channels)
    torch.testing.assert_close(conv(ffn.down_proj, inner).mT, ffn(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in VARIANTS}))
def test_dropout_falls_on_the_inner_layer_in_training_alone(name):
    torch.manual_seed(0)
    ffn = FEED_FORWARD.build(Choice(name, dropout=0.5), 4, 64)
    seen = []
    ffn.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    ffn(torch.randn(8, 4))
    ffn.eval()(torch.randn(8, 4))
    dropped, whole = ((x == 0).float().mean().item() for x in seen)
    assert dropped > whole + 0.2


def test_the_slope_of_prelu_is_learned():
    ffn = FEED_FORWARD.build(Choice("prelu"), 4, 6)
    ffn(-torch.ones(1, 4)).sum().backward()
    assert isinstance(ffn.activation, nn.PReLU)
    assert ffn.activation.weight.grad.abs() > 0


def test_prelu_per_channel_has_a_slope_for_each_inner_unit():
    """He et al. (2015), eq. 1, with slopes that differ, and its gradient, eq. 10: sum of the negative y_i."""
    torch.manual_seed(0)
    ffn = FEED_FORWARD.build(Choice("prelu", per_channel=True), 4, 6).double()
    assert ffn.activation.weight.tolist() == [0.25] * 6
    slopes = torch.tensor([0.0, 0.1, -0.3, 1.0, 2.0, 0.5], dtype=torch.double)
    ffn.activation.weight.data = slopes
    y = torch.randn(2, 5, 6, dtype=torch.double)
    out = ffn.activation(y)
    for b, t, i in ((b, t, i) for b in range(2) for t in range(5) for i in range(6)):
        assert out[b, t, i] == (y[b, t, i] if y[b, t, i] > 0 else slopes[i] * y[b, t, i])
    ffn.activation.weight.requires_grad_().grad = None
    ffn.activation(y).sum().backward()
    torch.testing.assert_close(ffn.activation.weight.grad, y.clamp(max=0).sum((0, 1)))


def test_the_beta_of_swiglu_is_learned():
    """Its gradient against a difference quotient; afterwards the layer computes with the new value."""
    torch.manual_seed(0)
    ffn, x = FEED_FORWARD.build(Choice("swiglu", beta="learned"), 4, 6).double(), torch.randn(3, 4).double()
    beta = ffn.activation.beta
    assert isinstance(beta, nn.Parameter) and beta.tolist() == [1.0]
    (grad,) = torch.autograd.grad(ffn(x).sum(), beta)
    with torch.no_grad():
        results = []
        for value in (1 - 1e-5, 1 + 1e-5, 1.7):
            beta.fill_(value)
            results.append(ffn(x))
    assert grad.item() == pytest.approx((results[1] - results[0]).sum().item() / 2e-5, rel=1e-6)
    fixed = FEED_FORWARD.build(Choice("swiglu", beta=1.7), 4, 6).double()
    fixed.load_state_dict({n: p for n, p in ffn.state_dict().items() if "beta" not in n})
    torch.testing.assert_close(fixed(x), results[2])


@pytest.mark.parametrize("beta", ["learnt", "nan", None])
def test_a_beta_that_is_no_number_is_refused(beta):
    with pytest.raises(UserError, match="beta of feed_forward 'swiglu'"):
        FEED_FORWARD.check(Choice("swiglu", beta=beta))


def test_a_dropout_that_is_no_probability_is_refused():
    with pytest.raises(UserError, match="dropout"):
        FEED_FORWARD.build(Choice("relu", dropout=1.5), 4, 6)
