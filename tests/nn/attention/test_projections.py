"""Tests of nn/attention/projections.py."""

import pytest
import torch
from tests.nn.attention.softmax_helpers import layer, reference

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position


@pytest.mark.parametrize("kind", [True, "zero_centered", "unweighted", "all_heads", "layernorm", "per_head"])
def test_what_norms_queries_and_keys_adds_qk_eps(kind):
    for given, eps in (({"qk_eps": 0.5}, 0.5), ({}, 1e-6)):
        made = layer(qk_norm=kind, **given)
        assert (made.q_norm.eps, made.k_norm.eps) == (eps, eps)


def test_queries_of_a_group_share_the_parameters_of_their_keys():
    for n in (1, 2, 3, 6):
        a = Attention(AttentionShape.from_sizes(12, 6, n), Position(AttentionShape.from_sizes(12, 6, n)))
        assert a.k_proj.weight.shape == a.v_proj.weight.shape == (2 * n, 12)
        assert sum(p.numel() for p in a.parameters()) == 2 * (12 * 12 + 12) + 2 * (12 * 2 * n + 2 * n)


@pytest.mark.parametrize(("tie", "shared"), [("none", 0), ("kv", 1), ("qk", 1), ("qkv", 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_tied_projections_are_one_matrix(tie, shared, causal):
    """(Q, V), (K, V), (V): each tie saves one projection, and the equation reads the shared one."""
    a, x = layer(6, causal, tie=tie), torch.randn(2, 7, 12, dtype=torch.double)
    assert sum(p.numel() for p in a.parameters()) == (4 - shared) * (12 * 12 + 12)
    torch.testing.assert_close(a(x), reference(a, x), rtol=0, atol=2e-6)
