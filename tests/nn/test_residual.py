"""Residuals and blocks: what is added to what, and where the norm stands."""

import pytest
import torch
from torch import nn

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import BLOCK, FEED_FORWARD
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.block.transformer import Block
from polyhead.nn.kv import KV
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.nn.stack import Stack, build_stack


@pytest.mark.parametrize("pre", [False, True])
def test_the_norm_comes_first_or_last(pre):
    norm, linear, x = RMSNorm(4), nn.Linear(4, 4), torch.randn(2, 3, 4)
    nn.init.normal_(norm.weight)
    wanted = x + linear(norm(x)) if pre else norm(x + linear(x))
    assert torch.equal(Residual(norm, pre)(x, linear), wanted)


def test_the_sandwich_norms_what_is_added_as_well():
    torch.manual_seed(0)
    x, linear, before, after = torch.randn(2, 3, 8), nn.Linear(8, 8), LayerNorm(8), LayerNorm(8)
    for norm in (before, after):
        nn.init.normal_(norm.weight)
    got = Residual(before, True, sandwich_norm=after)(x, linear)
    assert torch.equal(got, x + after(linear(before(x))))


def test_the_norm_after_may_stand_alone():
    """x + N(Attention(x)), then x + N(FFN(x)) (Liu et al., 2022, figure 1), and a norm that closes the stack."""
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
    y = Residual(NoNorm(8), True, 0.5)(x, torch.ones_like)
    assert set(y.unique().tolist()) == {7.0, 9.0}
    y = Residual(NoNorm(8), False, 0.5)(x, torch.ones_like)
    assert set(y.unique().tolist()) == {7.0, 9.0}


@pytest.mark.parametrize("pre", [False, True])
def test_each_sublayer_adds_its_own_input(pre):
    """Y = N(Z + F(Z)) with Z from the sub-layer before, three times over (Vaswani et al., 2017)."""
    torch.manual_seed(0)
    attn, cross = (
        Attention(s, Position(s))
        for s in (AttentionShape.from_sizes(8, 2, causal=causal) for causal in (True, False))
    )
    ffn = FEED_FORWARD.build(Choice("relu"), 8, 12)
    norms = [LayerNorm(8) for _ in range(3)]
    for norm in norms:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    residuals = [Residual(norm, pre) for norm in norms]
    block = Block(attn, ffn, residuals[0], residuals[2], cross, residuals[1])
    x, memory = torch.randn(1, 5, 8), cross.project_kv(torch.randn(1, 3, 8), None)
    wanted = x
    for norm, sub in zip(norms, (attn, lambda h: cross(h, memory=memory), ffn), strict=True):
        wanted = wanted + sub(norm(wanted)) if pre else norm(wanted + sub(wanted))
    torch.testing.assert_close(block(x, memory=memory), wanted)
    assert not any("cross" in name for name, _ in Block(attn, ffn, *residuals[:2]).named_parameters())


def test_sublayers_in_parallel_all_read_the_input():
    """x + Attention(N1 x) + Attention(N3 x, source) + FFN(N2 x) (Black et al., 2022, sec. 2.1)."""
    torch.manual_seed(0)
    config = ModelSpec(
        d_model=8, n_heads=2, n_layers=1, d_ff=12, norm_first=True, block="parallel", dropout=0
    )
    shape = config.attention_shape(causal=True)
    block = BLOCK.build(config.block, config, shape, Position(shape), True)
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.5)
    x, memory = torch.randn(1, 5, 8), block.project_kv(torch.randn(1, 3, 8), None)
    added = [
        block.attn(block.attn_residual.norm(x)),
        block.ffn(block.ffn_residual.norm(x)),
        block.cross(block.cross_residual.norm(x), memory=memory),
    ]
    torch.testing.assert_close(block(x, memory=memory), x + sum(added))
    torch.testing.assert_close(block(x), x + added[0] + added[1])
    assert not any(
        "cross" in name
        for name, _ in BLOCK.build(config.block, config, shape, Position(shape), False).named_parameters()
    )


@pytest.mark.parametrize("wrong", [{}, {"norm_first": True, "sandwich_norm": True}])
def test_a_block_in_parallel_wants_its_norms_first_and_alone(wrong):
    with pytest.raises(UserError, match="block 'parallel' has one norm before each sub-layer"):
        ModelSpec(d_model=8, n_heads=2, block="parallel", **wrong)


def test_a_stack_gives_each_layer_its_memory_and_ends_with_its_norm():
    class Add(nn.Module):
        def forward(self, x, pos, cache, memory):
            return x + (0 if memory is None else memory.k)

    class Double(nn.Module):
        def forward(self, x, pos):
            return 2 * x.relu()

    stack = Stack([Add(), Add()], Double())
    memory = [KV(torch.tensor(-3.0), torch.tensor(0.0)), KV(torch.tensor(1.0), torch.tensor(0.0))]
    x = torch.tensor([1.0, 5.0])
    assert stack(x, memory=memory).tolist() == [0.0, 6.0]
    assert stack(x).tolist() == [2.0, 10.0]
