"""The attention layer against its equation head by head in double precision."""

import pytest
import torch
from tests.nn.attention.softmax_helpers import layer, reference

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
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


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_layer_is_its_equation(n_kv_heads, options, causal):
    a, x = layer(n_kv_heads, causal, **options), torch.randn(2, 7, 12, dtype=torch.double)
    wanted = reference(a, x, qk_norm=options.get("qk_norm", False))
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(a(x, torch.arange(7).expand(2, 7)), wanted, rtol=0, atol=2e-6)
    watched = []
    a.weights_hooks.append(watched.append)
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
    assert watched[0].shape == (2, 6, 7, 7)
    torch.testing.assert_close(watched[0].sum(-1), torch.ones(2, 6, 7, dtype=torch.double))


@pytest.mark.parametrize("n_kv_heads", [1, 3, 6])
@pytest.mark.parametrize("window", [None, 2])
def test_over_a_memory_it_reads_the_memory_whole(n_kv_heads, window):
    """Queries from one side, keys and values from the other; a window is about one's own side."""
    a = layer(n_kv_heads, window=window)
    x, source = torch.randn(2, 4, 12, dtype=torch.double), torch.randn(2, 5, 12, dtype=torch.double)
    memory = a.project_kv(source, None)
    torch.testing.assert_close(a(x, memory=memory), reference(a, x, source), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        a(x, torch.arange(90, 94).expand(2, 4), memory=memory), reference(a, x, source), rtol=0, atol=1e-9
    )


def test_dropout_of_weights_is_for_training():
    a, x = layer(dropout=0.5), torch.randn(1, 5, 12, dtype=torch.double)
    assert not torch.equal(a(x), a(x))
    torch.testing.assert_close(a.eval()(x), reference(a, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"sink": 1}, "it requires a window"),
        ({"softcap": 0.0}, "above 0, not 0.0"),
        ({"dropout": 1.0}, "dropout of attention"),
        ({"tie": "qk"}, "as many key heads as query heads: n_kv_heads=6"),
        ({"tie": "kv", "v_head_dim": 3}, "values as wide as keys: v_head_dim=2"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        layer(**options)


def test_one_head_may_be_wider_than_the_model():
    """A single head of any width, values of another (the general form of scaled dot-product attention)."""
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(5, 1, head_dim=8, v_head_dim=3)
    a, x = Attention(shape, Position(shape)).double(), torch.randn(2, 4, 5, dtype=torch.double)
    q, k, v = a.q_proj(x), a.k_proj(x), a.v_proj(x)
    wanted = a.o_proj((q @ k.mT / 8**0.5).softmax(-1) @ v)
    assert v.shape == (2, 4, 3)
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
