import torch
from tests.nn.model_helpers import randomize

from polyhead.config.model import ModelSpec
from polyhead.core.registry import BLOCK
from polyhead.nn.position.base import Position


def test_parallel_sublayers_read_the_input():
    """x + Attention(N1 x) + Attention(N3 x, source) + FFN(N2 x) (Black et al., 2022, sec. 2.1)."""
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 12, "dropout": 0}
    config = ModelSpec(**sizes, norm_first=True, block="parallel")
    shape = config.attention_shape(causal=True)
    position = Position(shape)
    block, decoder_only = (BLOCK.build(config.block, config, shape, position, x) for x in (True, False))
    assert not any("cross" in name for name, _ in decoder_only.named_parameters())
    x, memory = torch.randn(1, 5, 8), randomize(block, 0.5).project_kv(torch.randn(1, 3, 8), None)
    expected = x + block.attn(block.attn_residual.norm(x)) + block.ffn(block.ffn_residual.norm(x))
    torch.testing.assert_close(block(x), expected)
    expected = expected + block.cross(block.cross_residual.norm(x), memory=memory)
    torch.testing.assert_close(block(x, memory=memory), expected)
