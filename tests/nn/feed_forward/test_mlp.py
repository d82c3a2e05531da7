import math
from typing import get_args

import pytest
import torch
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.core.errors import UserError
from polyhead.core.registry import FEED_FORWARD
from polyhead.nn.feed_forward.mlp import MLPActivation

GATED_UNITS = {"reglu": "relu", "geglu": "gelu", "swiglu": "silu"}


def leaky_relu(slope):
    return lambda x: torch.where(x > 0, x, slope * x)


def swish(beta):
    return lambda x: x / (1 + torch.exp(-beta * x))


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "leaky_relu": leaky_relu(0.01),
    "prelu": leaky_relu(0.25),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": swish(1),
    "tanh": torch.tanh,
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "glu": lambda x: 1 / (1 + torch.exp(-x)),
}
ACTIVATIONS |= {gated: ACTIVATIONS[name] for gated, name in GATED_UNITS.items()}
GELU_TANH = ACTIVATIONS.pop("gelu_tanh")
VARIANTS = [(name, {}, g) for name, g in ACTIVATIONS.items()] + [
    ("leaky_relu", {"slope": 0.3}, leaky_relu(0.3)),
    ("prelu", {"slope": 0.5}, leaky_relu(0.5)),
    ("prelu", {"slope": 0.5, "per_channel": True}, leaky_relu(0.5)),
    *(("swiglu", {"beta": beta}, swish(beta)) for beta in (1.702, 0)),
    ("swiglu", {"beta": "learned"}, swish(1)),
    *((name, {"tanh": True}, GELU_TANH) for name in ("gelu", "geglu")),
    ("conv1x1", {"activation": "gelu_tanh"}, GELU_TANH),
    *(("conv1x1", {"activation": a}, ACTIVATIONS[a]) for a in get_args(MLPActivation) if a in ACTIVATIONS),
]


def build_ffn(name, d_model=4, d_ff=6, **options):
    torch.manual_seed(0)
    return FEED_FORWARD.build(Choice(name, **options), d_model, d_ff).double()


def linear(layer, x):
    """x W + b; a kernel of width 1 is a matrix."""
    y = (x[..., None, :] * layer.weight.flatten(1)).sum(-1)
    return y if layer.bias is None else y + layer.bias


@pytest.mark.parametrize("bias", [True, False, "down"])
@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=lambda i: "-".join(map(str, VARIANTS[i][:2])))
def test_feed_forward_equals_its_formula(variant, bias):
    """g(x W1 + b1) W2 + b2, or (g(x Wg + bg) * (x Wu + bu)) Wd + bd."""
    name, options, g = VARIANTS[variant]
    if bias == "down" and not name.endswith("glu"):
        with pytest.raises(UserError, match=f"bias of feed_forward '{name}'"):
            FEED_FORWARD.check(Choice(name, bias="down", **options))
        return
    ffn = build_ffn(name, bias=bias, **options)
    for p in ffn.parameters():
        p.data.add_(torch.randn_like(p) if p.ndim < 2 and p.numel() > 1 else 0)
    if options.get("per_channel"):
        ffn.activation.weight.data.fill_(options["slope"])
    x = torch.randn(2, 3, 4, dtype=torch.double)
    h = linear(ffn.up_proj, x)
    h = g(linear(ffn.gate_proj, x)) * h if hasattr(ffn, "gate_proj") else g(h)
    torch.testing.assert_close(ffn(x), linear(ffn.down_proj, h), rtol=0, atol=1e-9)
    has_bias = {n: layer.bias is not None for n, layer in ffn.named_children() if n.endswith("_proj")}
    assert has_bias.pop("down_proj") == bool(bias) and set(has_bias.values()) == {bias is True}


def test_every_registered_feed_forward_has_a_formula():
    assert set(FEED_FORWARD.names()) == {name for name, _, _ in VARIANTS} | {"moe"}  # see test_moe.py
    assert {o["activation"] for name, o, _ in VARIANTS if name == "conv1x1"} == set(get_args(MLPActivation))


@pytest.mark.parametrize("init", ["xavier", "normal"])
def test_conv1x1_has_the_initial_weights_of_relu(init):
    sizes = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 1, "init": init}
    models = [build(ModelConfig(**sizes, feed_forward=ffn), seed=3) for ffn in ("relu", "conv1x1")]
    weights = [{n: p for n, p in model.named_parameters() if ".ffn." in n} for model in models]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name].view_as(weight)), name


@pytest.mark.parametrize("name", sorted({name for name, _, _ in VARIANTS}))
def test_dropout_applies_to_the_inner_layer_in_training(name):
    ffn, inner = build_ffn(name, d_ff=64, dropout=0.5), []
    ffn.down_proj.register_forward_pre_hook(lambda _, args: inner.append(args[0]))
    for training in (True, False):
        ffn.train(training)(torch.randn(8, 4, dtype=torch.double))
    train_zeros, eval_zeros = ((x == 0).float().mean().item() for x in inner)
    assert train_zeros > eval_zeros + 0.2


def test_slopes_of_prelu_and_swiglu_are_learned():
    """He et al. (2015), eq. 1, with different slopes, and its gradient, eq. 10: sum of the negative y_i."""
    ffn = build_ffn("prelu", per_channel=True)
    assert isinstance(ffn.activation, nn.PReLU) and ffn.activation.weight.tolist() == [0.25] * 6
    slopes = torch.tensor([0.0, 0.1, -0.3, 1.0, 2.0, 0.5], dtype=torch.double)
    ffn.activation.weight.data = slopes
    y = torch.randn(2, 5, 6, dtype=torch.double)
    output = ffn.activation(y)
    assert torch.equal(output, torch.where(y > 0, y, slopes * y))
    output.sum().backward()
    torch.testing.assert_close(ffn.activation.weight.grad, y.clamp(max=0).sum((0, 1)))
    ffn, x = build_ffn("swiglu", beta="learned"), torch.randn(3, 4).double()
    beta = ffn.activation.beta
    assert isinstance(beta, nn.Parameter) and beta.tolist() == [1.0]
    (gradient,) = torch.autograd.grad(ffn(x).sum(), beta)
    outputs = []
    with torch.no_grad():
        for value in (1 - 1e-5, 1 + 1e-5, 1.7):
            beta.fill_(value)
            outputs.append(ffn(x))
    assert gradient.item() == pytest.approx((outputs[1] - outputs[0]).sum().item() / 2e-5, rel=1e-6)
    constant = build_ffn("swiglu", beta=1.7)
    constant.load_state_dict({n: p for n, p in ffn.state_dict().items() if "beta" not in n})
    torch.testing.assert_close(constant(x), outputs[2])
