"""The attention layer against its equation head by head in double precision."""

import pytest
import torch

from polyhead.errors import UserError
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope


def layer(n_kv_heads=2, causal=False, position=Position, **options):
    torch.manual_seed(0)
    made = Attention(12, 6, n_kv_heads, position(12, 6, 2, 16), causal, **options).double()
    for p in made.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return made


def reference(a, x, memory=None, pos=None, scale=None):
    """MultiHead(Q, K, V) head by head (Vaswani et al., 2017, sec. 3.2.2), keys repeated for their group."""
    memory = x if memory is None else memory
    group = a.q_proj.out_features // a.k_proj.out_features
    heads = []
    T, S, D = x.size(1), memory.size(1), a.head_dim
    for h in range(6):
        q = a.q_proj(x)[..., h * D : (h + 1) * D]
        k, v = (proj(memory)[..., h // group * D : (h // group + 1) * D] for proj in (a.k_proj, a.v_proj))
        q, k = a.q_norm(q), a.k_norm(k)
        q, k = (a.position.rotate(y[:, None], p)[:, 0] for y, p in ((q, pos), (k, pos)))
        scores = (q @ k.mT) * (D**-0.5 if a.scale is None else a.scale)
        at, to = torch.arange(T)[:, None], torch.arange(S)[None]
        seen = torch.ones(T, S, dtype=torch.bool)
        if a.causal:
            seen &= to <= at
        if a.window is not None and memory is x:
            seen &= (at - to).abs() < a.window
        heads.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    return a.o_proj(torch.cat(heads, -1))


OPTIONS = [
    {},
    {"scale": 1.0},
    {"qk_norm": True},
    {"bias": False},
    {"window": 1},
    {"window": 3},
    {"window": 99, "qk_norm": True, "scale": 0.2, "position": Rope},
]


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_layer_is_its_equation(n_kv_heads, options, causal):
    a, x = layer(n_kv_heads, causal, **options), torch.randn(2, 7, 12, dtype=torch.double)
    wanted = reference(a, x)
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(a(x, torch.arange(7).expand(2, 7)), wanted, rtol=0, atol=2e-6)
    watched = []
    a.watchers.append(watched.append)
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
    assert watched[0].shape == (2, 6, 7, 7)
    torch.testing.assert_close(watched[0].sum(-1), torch.ones(2, 6, 7, dtype=torch.double))


@pytest.mark.parametrize("n_kv_heads", [1, 3, 6])
@pytest.mark.parametrize("window", [None, 2])
def test_over_a_memory_it_reads_the_memory_whole(n_kv_heads, window):
    """Queries from one side, keys and values from the other; a window is about one's own side."""
    a = layer(n_kv_heads, window=window)
    x, source = torch.randn(2, 4, 12, dtype=torch.double), torch.randn(2, 5, 12, dtype=torch.double)
    memory = a.remember(source, None)
    torch.testing.assert_close(a(x, memory=memory), reference(a, x, source), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        a(x, torch.arange(90, 94).expand(2, 4), memory=memory), reference(a, x, source), rtol=0, atol=1e-9
    )


def test_dropout_of_weights_is_for_training():
    a, x = layer(dropout=0.5), torch.randn(1, 5, 12, dtype=torch.double)
    assert not torch.equal(a(x), a(x))
    torch.testing.assert_close(a.eval()(x), reference(a, x), rtol=0, atol=1e-9)


def test_queries_of_a_group_share_the_parameters_of_their_keys():
    for n in (1, 2, 3, 6):
        a = Attention(12, 6, n, Position(12, 6, 2, 16), False)
        assert a.k_proj.weight.shape == a.v_proj.weight.shape == (2 * n, 12)
        assert sum(p.numel() for p in a.parameters()) == 2 * (12 * 12 + 12) + 2 * (12 * 2 * n + 2 * n)


@pytest.mark.parametrize(
    ("options", "message"), [({"window": 0}, "window is 0"), ({"dropout": 1.0}, "dropout of attention")]
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        layer(**options)
