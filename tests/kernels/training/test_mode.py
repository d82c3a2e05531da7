import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.training.fusion_helpers import record_fusions
from torch import nn

from polyhead import ModelConfig, build
from polyhead.kernels.training.mode import training_kernels
from polyhead.nn.feed_forward.mlp import FeedForward
from polyhead.nn.lora import LoraLinear
from polyhead.nn.norm import LayerNorm
from polyhead.nn.residual import Residual
from polyhead.nn.stack import recompute_blocks

pytestmark = needs_kernels

WIDTH = 32


@pytest.fixture
def is_fused(monkeypatch):
    with record_fusions(monkeypatch) as record:
        yield record


def make_sublayer(**options):
    torch.manual_seed(1)
    return Residual(LayerNorm(WIDTH), True, **options), FeedForward(WIDTH, 48, torch.relu, True, 0.0)


class OwnLinear(nn.Linear):
    """A subclass, whose computation is unknown."""


ADAPTER = {"alpha": 2.0, "dropout": 0.0, "generator": torch.Generator()}
CHANGES = {
    "hook": lambda residual, layer: layer.register_forward_hook(lambda *_: None),
    "hook of a map": lambda residual, layer: layer.up_proj.register_forward_pre_hook(lambda *_: None),
    "hook of the norm": lambda residual, layer: residual.norm.register_full_backward_hook(lambda *_: None),
    "subclass": lambda residual, layer: setattr(layer, "up_proj", OwnLinear(WIDTH, 48)),
    "adapter": lambda residual, layer: setattr(layer, "up_proj", LoraLinear(layer.up_proj, 2, **ADAPTER)),
    "reparametrized": lambda residual, layer: nn.utils.parametrizations.weight_norm(layer.up_proj),
    "rare dropout": lambda residual, layer: setattr(residual.dropout, "p", 0.01),
    "another activation": lambda residual, layer: setattr(layer, "activation", torch.sin),
    "another norm": lambda residual, layer: setattr(residual, "norm", nn.Identity()),
    "fp64": lambda residual, layer: (residual.double(), layer.double()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unsupported_modules_are_not_fused(change, is_fused):
    residual, layer = make_sublayer()
    CHANGES[change](residual, layer)
    x = torch.randn(2, 5, WIDTH, dtype=layer.down_proj.weight.dtype)
    if change == "another norm":
        residual.norm.forward = lambda x, pos=None: x  # type: ignore[method-assign]
    state = torch.get_rng_state()
    with training_kernels():
        out = residual(x, layer)
    torch.set_rng_state(state)
    assert not any(is_fused) and torch.equal(out, residual(x, layer))


def test_hooks_residuals_and_copies_of_weights(is_fused):
    residual, layer = make_sublayer()
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with training_kernels():
            residual(torch.randn(2, 5, WIDTH), layer)
    finally:
        hook.remove()
    with training_kernels(), torch.no_grad():
        residual(torch.randn(2, 5, WIDTH), layer)
    assert is_fused == [False]  # of a pass without gradients nothing is recorded
    outer, _ = make_sublayer()
    residual, layer = make_sublayer()
    with training_kernels():
        outer(torch.randn(2, 5, WIDTH), lambda x, pos: residual(x, layer, pos))
    assert is_fused == [False, True]
    residual, layer = make_sublayer()
    x, outputs = torch.randn(2, 5, WIDTH), []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16), training_kernels():
            outputs.append(residual(x, layer))
        layer.up_proj.weight.data.mul_(2)  # no new version, as with gathered shards
    with torch.autocast("cpu", torch.bfloat16):
        layer.up_proj.weight.data.div_(2)
        plain = residual(x, layer)
    assert (outputs[1] - plain).norm() < 0.01 * plain.norm() < (outputs[0] - plain).norm()


@pytest.mark.parametrize("frozen", ["up_proj.weight", "down_proj.weight", "all but the norm"])
def test_frozen_weights_have_no_gradient(frozen, is_fused):
    residual, layer = make_sublayer()
    for name, weight in layer.named_parameters():
        weight.requires_grad_(name != frozen and frozen != "all but the norm")
    x = torch.randn(2, 5, WIDTH)
    grads = []
    for context in (training_kernels(), torch.autocast("cpu", enabled=False)):
        residual.zero_grad(), layer.zero_grad()
        with context:
            residual(x, layer).square().sum().backward()
        grads.append([weight.grad for weight in (*layer.parameters(), *residual.parameters())])
    assert is_fused == [True]
    for actual, plain in zip(*grads, strict=True):
        assert (actual is None) == (plain is None)
        if actual is not None:
            torch.testing.assert_close(actual, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputation_is_fused_and_has_the_same_bits(precision, is_fused):
    sizes = {
        "kind": "decoder",
        "vocab_size": 50,
        "d_model": WIDTH,
        "n_heads": 4,
        "head_dim": 16,
        "n_layers": 2,
    }
    config = ModelConfig(**sizes, dropout=0.1, feed_forward="swiglu")
    tokens, results = torch.randint(0, 50, (2, 9)), []
    for recompute in (False, True):
        model = build(config, seed=1).train()
        recompute_blocks(model, recompute)
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), training_kernels():
            loss = model(tokens).float().square().mean()
        loss.backward()
        results.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    # two sub-layers of two layers three times: the recomputation is in the backward pass
    assert is_fused == [True] * 12 and all(map(torch.equal, *results))
