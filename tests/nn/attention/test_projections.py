import pytest
import torch
from tests.nn.attention.softmax_helpers import make_attention, reference


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
