import pytest
import torch
from tests.nn.model_helpers import randomize

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import FEED_FORWARD
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.block.transformer import Block
from polyhead.nn.norm import LayerNorm
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual


@pytest.mark.parametrize("pre", [False, True])
def test_each_sublayer_adds_its_own_input(pre):
    """Y = N(Z + F(Z)) with Z from the sub-layer before, three times (Vaswani et al., 2017)."""
    shapes = (AttentionShape.from_sizes(8, 2, causal=causal) for causal in (True, False))
    attn, cross = (randomize(Attention(shape, Position(shape)), 0.5) for shape in shapes)
    ffn, norms = FEED_FORWARD.build(Choice("relu"), 8, 12), [randomize(LayerNorm(8), 1) for _ in range(3)]
    residuals = [Residual(norm, pre) for norm in norms]
    block = Block(attn, ffn, residuals[0], residuals[2], cross, residuals[1])
    x, memory = torch.randn(1, 5, 8), cross.project_kv(torch.randn(1, 3, 8), None)
    expected = x
    for norm, sub in zip(norms, (attn, lambda h: cross(h, memory=memory), ffn), strict=True):
        expected = expected + sub(norm(expected)) if pre else norm(expected + sub(expected))
    torch.testing.assert_close(block(x, memory=memory), expected)
    assert not any("cross" in name for name, _ in Block(attn, ffn, *residuals[:2]).named_parameters())
