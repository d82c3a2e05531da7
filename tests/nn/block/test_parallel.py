"""Tests of nn/block/parallel.py."""

import pytest
import torch
from torch import nn

from polyhead.config.model import ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.registry import BLOCK
from polyhead.nn.position.base import Position
from polyhead.nn.validate_model import check_model


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
    with pytest.raises(UserError, match="block 'parallel' requires norm_first=true without sandwich_norm"):
        check_model(ModelSpec(d_model=8, n_heads=2, block="parallel", **wrong))
