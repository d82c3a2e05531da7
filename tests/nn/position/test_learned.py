import itertools

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.nn.position.absolute import LearnedPosition


def test_learned_positions_and_offsets_are_rows():
    """Its table has two rows more than positions; position i of a padded row reads row i + 2."""
    scheme = LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=4))
    x, pos = torch.randn(2, 3, 6), torch.tensor([[3, -1, 0], [2, 1, 1]])
    torch.testing.assert_close(scheme.embed(x, None), x + scheme.weight[:3])
    output = scheme.embed(x, pos)
    assert torch.equal(output[pos >= 0], (x[pos >= 0] + scheme.weight[pos[pos >= 0]]))
    output[pos >= 0].sum().backward()
    assert scheme.weight.grad[:, 0].tolist() == [1, 2, 1, 1]
    for offset, (width, pos) in itertools.product((0, 2), ((5, None), (2, torch.tensor([[0, 4]])))):
        scheme = LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=4), offset=offset)
        with pytest.raises(UserError, match=r"5 positions, .* max_len=4"):
            scheme.embed(torch.zeros(1, width, 6), pos)
    opt = pytest.importorskip("transformers.models.opt.modeling_opt")
    scheme = LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=7), offset=2)
    expected = opt.OPTLearnedPositionalEmbedding(7, 6)
    assert scheme.weight.shape == expected.weight.shape
    expected.weight.data.copy_(scheme.weight)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    pos = torch.where(mask == 1, mask.cumsum(1) - 1, -1)
    assert torch.equal(scheme.embed(torch.zeros(2, 7, 6), pos)[pos >= 0], expected(mask)[pos >= 0])
    assert torch.equal(scheme.embed(torch.zeros(1, 5, 6), None)[0], scheme.weight[2:7])
