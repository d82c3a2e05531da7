"""Position schemes against the formulas of their papers, in double precision."""

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION
from polyhead.nn.attention.softmax import Attention


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("scheme", POSITION.names())
def test_attention_without_positions_is_permutation_equivariant(scheme):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(8, 2, 1)
    position = POSITION.get(scheme)(shape)
    attention = Attention(shape, position)
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])

    def output(x):
        return attention(position.embed(x, None))

    off = (output(x[:, order]) - output(x)[:, order]).abs().max()
    assert off < 1e-6 if scheme == "none" else off > 1e-3


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("scheme", sorted(set(POSITION.names()) - {"none", "learned", "sinusoidal"}))
def test_relative_schemes_know_distances_alone(scheme, causal):
    """All positions moved by the same number: the same output. Moved apart: another one."""
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(8, 2, 1, causal=causal)
    attention = Attention(shape, POSITION.get(scheme)(shape)).double()
    x, pos = torch.randn(2, 6, 8).double(), torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, -1, 1, 4, 30]])
    seen = pos >= 0
    here = attention(x, pos)
    for shift in (1, 100):
        moved = attention(x, torch.where(seen, pos + shift, -1))
        torch.testing.assert_close(moved[seen], here[seen], rtol=0, atol=2e-5)  # angles are in fp32
    torch.testing.assert_close(attention(x, None)[0], here[0], rtol=0, atol=1e-12)
    assert (attention(x, torch.where(seen, 2 * pos, -1)) - here)[seen].abs().max() > 1e-3
