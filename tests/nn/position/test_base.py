import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION
from polyhead.nn.attention.softmax import Attention


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("name", POSITION.names())
def test_only_attention_without_positions_is_permutation_equivariant(name):
    shape = AttentionShape.from_sizes(8, 2, 1)
    position = POSITION.get(name)(shape)
    attention = Attention(shape, position)
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    output, permuted = (attention(position.embed(h, None)) for h in (x, x[:, order]))
    error = (permuted - output[:, order]).abs().max()
    assert error < 1e-6 if name == "none" else error > 1e-3
