import itertools

import pytest
import torch
from tests.nn.model_helpers import randomize
from torch import nn

from polyhead import Choice, ModelConfig, build
from polyhead.config.model import ModelSpec
from polyhead.core.registry import RESIDUAL
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.nn.stack import build_stack


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("pre", [False, True])
def test_norm_is_before_or_after_the_sublayer(pre, scale):
    norm, linear, x = randomize(RMSNorm(4), 1), nn.Linear(4, 4), torch.randn(2, 3, 4)
    sandwich = randomize(LayerNorm(4), 0.5) if pre else None
    for after in (None, sandwich):
        branch = linear(norm(x) if pre else x)
        expected = x + scale * (branch if after is None else after(branch))
        residual = Residual(norm, pre, scale=scale, sandwich_norm=after)
        output = residual(x, lambda h, pos: linear(h))
        torch.testing.assert_close(output, expected if pre else norm(expected), rtol=1e-6, atol=1e-6)


def test_sandwich_norm_after_has_no_norm_before():
    """x + N(Attention(x)), then x + N(FFN(x)) (Liu et al., 2022, figure 1), and a final norm."""
    sizes = {"kind": "decoder", "d_model": 8, "n_heads": 2, "n_layers": 2, "position": "none", "dropout": 0}
    norm = {"norm": {"name": "rmsnorm", "eps": 0.1}, "norm_first": True, "sandwich_norm": "after"}
    config = ModelSpec(**sizes, **norm)
    stack = build_stack(config, Position(config.attention_shape(True)), 2, causal=True, cross=False).double()
    randomize(stack, 0.5)
    norms = [name for name, _ in stack.named_parameters() if "norm" in name]
    parts = itertools.product((0, 1), ("attn", "ffn"))
    branches = [f"layers.{i}.{part}_residual.sandwich_norm.weight" for i, part in parts]
    assert sorted(norms) == ["final_norm.weight", *branches]

    def rms(norm, y):
        return y / (y.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight

    x = expected = torch.randn(2, 5, 8, dtype=torch.double)
    for layer in stack.layers:
        for residual, sublayer in ((layer.attn_residual, layer.attn), (layer.ffn_residual, layer.ffn)):
            expected = expected + rms(residual.sandwich_norm, sublayer(expected))
    torch.testing.assert_close(stack(x), rms(stack.final_norm, expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pre", [False, True])
def test_dropout_applies_to_the_branch_only(pre):
    torch.manual_seed(0)
    y = Residual(NoNorm(8), pre, 0.5)(torch.full((200, 4), 7.0), lambda h, pos: torch.ones_like(h))
    assert set(y.unique().tolist()) == {7.0, 9.0}


# Wang et al. (2022), fig.: (alpha, beta) of 48 layers; of 48 encoder and 12 decoder layers
DEEPNORM = [
    ("encoder", {}, {"encoder": (3.1301691601, 0.2259005009)}),
    ("decoder", {}, {"stack": (3.1301691601, 0.2259005009)}),
    (
        "encoder-decoder",
        {"n_decoder_layers": 12},
        {"encoder": (2.4902569229, 0.2829828495), "decoder": (2.4494897428, 0.2886751346)},
    ),
]
BRANCH_MAPS = ("v_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")


@pytest.mark.parametrize(("kind", "changes", "factors"), DEEPNORM)
def test_deepnorm_scales_input_and_initial_weights(kind, changes, factors):
    sizes = {
        "vocab_size": 9,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 12,
        "n_layers": 48,
        "max_len": 8,
        "dropout": 0,
    }
    plain, deep = (
        build(ModelConfig(kind=kind, residual=residual, **sizes, **changes), seed=1)
        for residual in ("add", "deepnorm")
    )
    for name, weight in plain.named_parameters():
        beta = factors.get(name.split(".")[0], (1, 1))[1] if name.endswith(BRANCH_MAPS) else 1
        torch.testing.assert_close(deep.get_parameter(name), beta * weight, rtol=1e-6, atol=0)
    for side, (alpha, _) in factors.items():
        stack = deep.get_submodule(side)
        stack = getattr(stack, "stack", stack).double()
        x = expected = torch.randn(2, 5, 8, dtype=torch.double)
        memory = torch.randn(2, 3, 8, dtype=torch.double)
        for layer in stack.layers:
            parts = [(layer.attn_residual.norm, lambda h, layer=layer: layer.attn(h))]
            if layer.cross is not None:
                kv = layer.cross.project_kv(memory, None)
                cross = lambda h, layer=layer, kv=kv: layer.cross(h, memory=kv)  # noqa: E731
                parts.append((layer.cross_residual.norm, cross))
            parts.append((layer.ffn_residual.norm, layer.ffn))
            for norm, sublayer in parts:
                expected = norm(alpha * expected + sublayer(expected))
        source = (memory, None) if side == "decoder" else None
        torch.testing.assert_close(stack(x, source=source), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pre", [False, True])
def test_none_replaces_the_input(pre):
    factors = RESIDUAL.build(Choice("none"), ModelSpec(), False)
    norm, linear, x = randomize(RMSNorm(4), 1), nn.Linear(4, 4), torch.randn(2, 3, 4)
    output = Residual(norm, pre, factors=factors)(x, lambda h, pos: linear(h))
    torch.testing.assert_close(output, linear(norm(x)) if pre else norm(linear(x)))
