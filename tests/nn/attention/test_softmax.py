from functools import partial

import pytest
import torch
from tests.nn.attention.softmax_helpers import make_attention, reference

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.disentangled import DisentangledPosition
from polyhead.nn.position.rope import Rope

OPTIONS = [
    {},
    {"scale": 1.0},
    {"qk_norm": True},
    {"qk_norm": "zero_centered"},
    {"qk_norm": "unweighted", "position": Rope},
    {"qk_norm": "layernorm", "position": Rope},
    {"qk_norm": "per_head", "head_dim": 4, "v_head_dim": 3, "position": Rope},
    {"qk_norm": "all_heads", "position": Rope},
    {"qk_norm": True, "qk_eps": 0.5},
    {"qk_norm": "all_heads", "head_dim": 4, "v_head_dim": 3},
    {"bias": False},
    {"window": 1},
    {"window": 3},
    {"window": 2, "sink": 1},
    {"softcap": 1.5},
    {"head_dim": 4, "v_head_dim": 3},
    {"tie": "kv"},
    {"tie": "kv", "position": Rope},
    {"window": 99, "qk_norm": True, "scale": 0.2, "position": Rope},
]


@pytest.mark.whole
@pytest.mark.parametrize("row", range(len(OPTIONS)), ids=lambda row: str(OPTIONS[row]))
def test_attention_equals_its_equation(row):
    options, n_kv_heads = OPTIONS[row], (1, 2, 3, 6)[row % 4]
    for causal in (False, True):
        a, x = make_attention(n_kv_heads, causal, **options), torch.randn(2, 7, 12, dtype=torch.double)
        expected, weights = reference(a, x, qk_norm=options.get("qk_norm", False)), []
        outputs = [a(x), a(x, torch.arange(7).expand(2, 7))]
        a.weights_hooks.append(weights.append)
        for output in (*outputs, a(x)):
            torch.testing.assert_close(output, expected, rtol=0, atol=2e-6)
        assert weights[0].shape == (2, 6, 7, 7)
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 6, 7, dtype=torch.double))


@pytest.mark.parametrize("n_kv_heads", [1, 3, 6])
@pytest.mark.parametrize("window", [None, 2])
def test_cross_attention_sees_all_of_the_memory(n_kv_heads, window):
    a = make_attention(n_kv_heads, window=window)
    x, source = torch.randn(2, 4, 12, dtype=torch.double), torch.randn(2, 5, 12, dtype=torch.double)
    memory, expected = a.project_kv(source, None), reference(a, x, source)
    for pos in (None, torch.arange(90, 94).expand(2, 4)):
        torch.testing.assert_close(a(x, pos, memory=memory), expected, rtol=0, atol=1e-9)


def test_dropout_in_evaluation_and_wide_heads():
    a, x = make_attention(dropout=0.5), torch.randn(1, 5, 12, dtype=torch.double)
    assert not torch.equal(a(x), a(x))
    torch.testing.assert_close(a.eval()(x), reference(a, x), rtol=0, atol=1e-9)
    shape = AttentionShape.from_sizes(5, 1, head_dim=8, v_head_dim=3)  # wider than the model
    a, x = Attention(shape, Position(shape)).double(), torch.randn(2, 4, 5, dtype=torch.double)
    q, k, v = a.q_proj(x), a.k_proj(x), a.v_proj(x)
    assert v.shape == (2, 4, 3)
    torch.testing.assert_close(a(x), a.o_proj((q @ k.mT / 8**0.5).softmax(-1) @ v), rtol=0, atol=2e-6)


def test_scale_counts_the_products_of_a_score():
    """1 / sqrt(n D) for a score of n products (He et al., 2021a, eq. 4)."""
    assert make_attention().scale is None
    assert make_attention(position=DisentangledPosition, scale=0.3).scale == 0.3
    for terms, n in (("both", 3), ("c2p", 2)):
        position = partial(DisentangledPosition, terms=terms)
        assert make_attention(position=position).scale == pytest.approx((n * 2) ** -0.5)
