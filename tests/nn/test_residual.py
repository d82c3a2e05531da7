"""Residuals and blocks: what is added to what, and where the norm stands."""

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelSpec
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.nn.stack import build_stack


@pytest.mark.parametrize("pre", [False, True])
def test_the_norm_comes_first_or_last(pre):
    norm, linear, x = RMSNorm(4), nn.Linear(4, 4), torch.randn(2, 3, 4)
    nn.init.normal_(norm.weight)
    wanted = x + linear(norm(x)) if pre else norm(x + linear(x))
    assert torch.equal(Residual(norm, pre)(x, lambda h, pos: linear(h)), wanted)


def test_the_sandwich_norms_what_is_added_as_well():
    torch.manual_seed(0)
    x, linear, before, after = torch.randn(2, 3, 8), nn.Linear(8, 8), LayerNorm(8), LayerNorm(8)
    for norm in (before, after):
        nn.init.normal_(norm.weight)
    got = Residual(before, True, sandwich_norm=after)(x, lambda h, pos: linear(h))
    assert torch.equal(got, x + after(linear(before(x))))


def test_the_norm_after_may_stand_alone():
    """x + N(Attention(x)), then x + N(FFN(x)) (Liu et al., 2022, figure 1), and a norm that closes the
    stack.
    """
    torch.manual_seed(0)
    config = ModelSpec(
        kind="decoder", d_model=8, n_heads=2, n_layers=2, norm={"name": "rmsnorm", "eps": 0.1},
        norm_first=True, sandwich_norm="after", dropout=0, position="none",
    )  # fmt: skip
    stack = build_stack(config, Position(config.attention_shape(True)), 2, causal=True, cross=False).double()
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.5)
    named = (
        name.removeprefix("layers.")[2:] if "layers" in name else name for name, _ in stack.named_parameters()
    )
    norms = sorted(name for name in named if "norm" in name or "after" in name)
    assert norms == 2 * ["attn_residual.sandwich_norm.weight"] + 2 * ["ffn_residual.sandwich_norm.weight"] + [
        "final_norm.weight"
    ]

    def rms(norm, y):
        return y / (y.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight

    x = wanted = torch.randn(2, 5, 8, dtype=torch.double)
    for layer in stack.layers:
        for residual, sub in ((layer.attn_residual, layer.attn), (layer.ffn_residual, layer.ffn)):
            wanted = wanted + rms(residual.sandwich_norm, sub(wanted))
    torch.testing.assert_close(stack(x), rms(stack.final_norm, wanted), rtol=0, atol=1e-6)


def test_dropout_falls_on_the_output_of_the_sublayer_not_on_the_stream():
    torch.manual_seed(0)
    x = torch.full((200, 4), 7.0)

    def ones(h, pos):
        return torch.ones_like(h)

    y = Residual(NoNorm(8), True, 0.5)(x, ones)
    assert set(y.unique().tolist()) == {7.0, 9.0}
    y = Residual(NoNorm(8), False, 0.5)(x, ones)
    assert set(y.unique().tolist()) == {7.0, 9.0}
