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


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("name", sorted(set(POSITION.names()) - {"none", "learned", "sinusoidal"}))
def test_relative_schemes_depend_on_distances_only(name, causal):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(8, 2, 1, causal=causal)
    attention = Attention(shape, POSITION.get(name)(shape)).double()
    x, pos = torch.randn(2, 6, 8).double(), torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, -1, 1, 4, 30]])
    is_token, expected = pos >= 0, attention(x, pos)
    for shift in (1, 100):
        output = attention(x, torch.where(is_token, pos + shift, -1))
        torch.testing.assert_close(output[is_token], expected[is_token], rtol=0, atol=2e-5)  # fp32 angles
    torch.testing.assert_close(attention(x, None)[0], expected[0], rtol=0, atol=1e-12)
    assert (attention(x, torch.where(is_token, 2 * pos, -1)) - expected)[is_token].abs().max() > 1e-3
