"""The attention layer against its equation head by head in double precision."""

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope


def rms(norm, x, around_one=False):
    """x / √(mean(x²) + eps) by a factor for each number of it (Zhang & Sennrich, 2019, eq. 4)."""
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * (norm.weight + around_one)


def layer(n_kv_heads=2, causal=False, position=Position, head_dim=2, v_head_dim=None, **options):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(
        12, 6, n_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, causal=causal
    )
    made = Attention(shape, position(shape), **options).double()
    for p in made.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return made


def centred(x):
    """Layer norm before its factors (Ba et al., 2016)."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("kind", [True, "zero_centered", "unweighted", "all_heads", "layernorm", "per_head"])
def test_what_norms_queries_and_keys_adds_qk_eps(kind):
    for given, eps in (({"qk_eps": 0.5}, 0.5), ({}, 1e-6)):
        made = layer(qk_norm=kind, **given)
        assert (made.q_norm.eps, made.k_norm.eps) == (eps, eps)


def reference(a, x, memory=None, pos=None, scale=None, qk_norm=False):
    """MultiHead(Q, K, V) head by head (Vaswani et al., 2017, sec. 3.2.2), keys repeated for their group."""
    memory = x if memory is None else memory
    group = a.q_proj.out_features // a.k_proj.out_features
    heads = []
    T, S, D, V = x.size(1), memory.size(1), a.head_dim, a.v_head_dim
    queries, keys = a.q_proj(x), a.k_proj(memory)
    if qk_norm == "all_heads":
        queries, keys = rms(a.q_norm, queries), rms(a.k_norm, keys)
    for h in range(6):
        q = queries[..., h * D : (h + 1) * D]
        k = keys[..., h // group * D : (h // group + 1) * D]
        v = a.v_proj(memory)[..., h // group * V : (h // group + 1) * V]
        if qk_norm in (True, "zero_centered", "unweighted"):
            q, k = (rms(norm, y, qk_norm == "zero_centered") for norm, y in ((a.q_norm, q), (a.k_norm, k)))
        if qk_norm == "layernorm":
            q, k = (centred(y) * norm.weight + norm.bias for norm, y in ((a.q_norm, q), (a.k_norm, k)))
        if qk_norm == "per_head":
            q, k = centred(q) * a.q_norm.heads[h], centred(k) * a.k_norm.heads[h // group]
        q, k = (a.position.rotate(y[:, None], p)[:, 0] for y, p in ((q, pos), (k, pos)))
        scores = (q @ k.mT) * (D**-0.5 if a.scale is None else a.scale)
        if a.softcap is not None:
            scores = torch.tanh(scores / a.softcap) * a.softcap
        at, to = torch.arange(T)[:, None], torch.arange(S)[None]
        seen = torch.ones(T, S, dtype=torch.bool)
        if a.causal:
            seen &= to <= at
        if a.window is not None and memory is x:
            seen &= ((at - to).abs() < a.window.size) | (to < a.window.sink)
        heads.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    return a.o_proj(torch.cat(heads, -1))


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


def test_queries_of_a_group_share_the_parameters_of_their_keys():
    for n in (1, 2, 3, 6):
        a = Attention(AttentionShape.from_sizes(12, 6, n), Position(AttentionShape.from_sizes(12, 6, n)))
        assert a.k_proj.weight.shape == a.v_proj.weight.shape == (2 * n, 12)
        assert sum(p.numel() for p in a.parameters()) == 2 * (12 * 12 + 12) + 2 * (12 * 2 * n + 2 * n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"sink": 1}, "give a window too"),
        ({"softcap": 0.0}, "above 0, not 0.0"),
        ({"dropout": 1.0}, "dropout of attention"),
        ({"tie": "qk"}, "as many key heads as query heads: n_kv_heads=6"),
        ({"tie": "kv", "v_head_dim": 3}, "values as wide as keys: v_head_dim=2"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        layer(**options)


@pytest.mark.parametrize(("tie", "shared"), [("none", 0), ("kv", 1), ("qk", 1), ("qkv", 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_tied_projections_are_one_matrix(tie, shared, causal):
    """(Q, V), (K, V), (V): each tie saves one projection, and the equation reads the shared one."""
    a, x = layer(6, causal, tie=tie), torch.randn(2, 7, 12, dtype=torch.double)
    assert sum(p.numel() for p in a.parameters()) == (4 - shared) * (12 * 12 + 12)
    torch.testing.assert_close(a(x), reference(a, x), rtol=0, atol=2e-6)


def test_one_head_may_be_wider_than_the_model():
    """A single head of any width, values of another (the general form of scaled dot-product attention)."""
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(5, 1, head_dim=8, v_head_dim=3)
    a, x = Attention(shape, Position(shape)).double(), torch.randn(2, 4, 5, dtype=torch.double)
    q, k, v = a.q_proj(x), a.k_proj(x), a.v_proj(x)
    wanted = a.o_proj((q @ k.mT / 8**0.5).softmax(-1) @ v)
    assert v.shape == (2, 4, 3)
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=2e-6)
