import pytest
import torch
from tests.nn.attention.softmax_helpers import make_attention, reference

from polyhead import Choice
from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION
from polyhead.nn.position.base import Position


@pytest.mark.parametrize("kind", [True, "zero_centered", "unweighted", "all_heads", "layernorm", "per_head"])
def test_qk_eps_is_the_eps_of_qk_norms(kind):
    for options, eps in (({"qk_eps": 0.5}, 0.5), ({}, 1e-6)):
        a = make_attention(qk_norm=kind, **options)
        assert (a.q_norm.eps, a.k_norm.eps) == (eps, eps)


@pytest.mark.parametrize(("tie", "n_shared"), [("none", 0), ("kv", 1), ("qk", 1), ("qkv", 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_tied_projections_share_one_matrix(tie, n_shared, causal):
    a, x = make_attention(6, causal, tie=tie), torch.randn(2, 7, 12, dtype=torch.double)
    assert sum(p.numel() for p in a.parameters()) == (4 - n_shared) * (12 * 12 + 12)
    torch.testing.assert_close(a(x), reference(a, x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ATTENTION.names())
@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_projections_weighs_its_input(name, causal):
    """Each head is a mean of its part of x, weighted by exp(x_i . x_j / sqrt(D)), or by elu features."""
    shape = AttentionShape.from_sizes(12, 3, causal=causal)
    attention = ATTENTION.build(Choice(name, projections="none"), shape, Position(shape)).double()
    x, heads = torch.randn(2, 7, 12, dtype=torch.double), []
    for y in x.split(4, -1):
        phi = torch.where(y > 0, y + 1, y.exp())
        similarity = phi @ phi.mT if name == "linear" else (y @ y.mT / 2).exp()
        weights = similarity.tril() if causal else similarity
        heads.append(weights / weights.sum(-1, keepdim=True) @ y)
    assert not list(attention.parameters())
    torch.testing.assert_close(attention(x), torch.cat(heads, -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ({"n_kv_heads": 1}, {}, r"n_kv_heads must be n_heads \(3\)"),
        ({"head_dim": 2}, {}, r"head_dim and v_head_dim d_model/n_heads \(4\)"),
        ({}, {"tie": "kv"}, "tie=kv shares projections, and projections=none has none"),
    ],
)
def test_attention_without_projections_needs_equal_widths(sizes, options, message):
    shape = AttentionShape.from_sizes(12, 3, **sizes)
    with pytest.raises(UserError, match=message):
        ATTENTION.build(Choice("softmax", projections="none", **options), shape, Position(shape))
