"""Linear attention against loops written from its paper (Katharopoulos et al., 2020), and its forms against each other."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch

from polyhead.cache.recurrent_state import StateCache
from polyhead.cache.static import StaticCache
from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import FEATURE_MAP, SIMILARITY
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.cache import CacheShape
from polyhead.nn.position.base import Position
from polyhead.nn.position.memo import MemoizeLast
from polyhead.nn.position.rope import Rope

C, H, D = 12, 6, 4
PHI = {  # eq. 7; its plainest rival; all D^2 products, whose dot product is (x . y)^2
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp(min=0),
    "square": lambda x: (x[..., :, None] * x[..., None, :]).flatten(-2),
}
OPTIONS = [
    {},
    {"feature_map": "relu"},
    {"feature_map": "square", "v_head_dim": 3},
    {"position": Rope},
    {"tie": "kv", "bias": False},
    {"head_dim": 2, "v_head_dim": 5, "eps": 0.1},
]


def layer(
    kind=LinearAttention,
    n_kv_heads=2,
    causal=False,
    position=Position,
    head_dim=D,
    v_head_dim=None,
    dtype=torch.double,
    **options,
):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(
        C, H, n_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, causal=causal
    )
    made = kind(shape, position(shape), **options).to(dtype)
    for p in made.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return made


def heads(a, x, source):
    """Queries of head h, keys and values of its group, (B, T, D) each."""
    D, V, group = a.head_dim, a.v_head_dim, a.q_proj.out_features // a.k_proj.out_features
    for h in range(H):
        g = h // group
        yield (
            a.q_proj(x)[..., h * D : h * D + D],
            a.k_proj(source)[..., g * D : g * D + D],
            a.v_proj(source)[..., g * V : g * V + V],
        )


def reference(a, x, source=None, phi="elu", at=None):
    """Head by head, query by query: eq. 4, and eq. 8 where it is causal; RoFormer's eq. 19 where positions turn heads.

    ``at``: where the tokens of x are.
    """
    phi, own, source = PHI[phi], source is None, x if source is None else source
    at = torch.arange(x.size(1)) if at is None else at
    out = []
    for q, k, v in heads(a, x, source):
        rows = []
        turned = (
            [a.position.rotate(phi(y)[:, None], at[None])[:, 0] for y in (q, k)] if own else [phi(q), phi(k)]
        )
        for i in range(x.size(1)):
            above, below = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0, :1])
            for j in range(i + 1 if a.causal and own else source.size(1)):
                above += (turned[0][:, i] * turned[1][:, j]).sum(-1, keepdim=True) * v[:, j]
                below += (phi(q[:, i]) * phi(k[:, j])).sum(-1, keepdim=True)
            rows.append(above / (below + a.eps))
        out.append(torch.stack(rows, 1))
    return a.o_proj(torch.cat(out, -1))


def as_rnn(a, x, phi):
    """Eq. 16 to 20: s and z grow token by token."""
    out = []
    for q, k, v in heads(a, x, x):
        s, z, rows = 0, 0, []
        for i in range(x.size(1)):
            s = s + PHI[phi](k[:, i])[:, :, None] * v[:, i][:, None, :]
            z = z + PHI[phi](k[:, i])
            f = PHI[phi](q[:, i])
            rows.append((f[:, None] @ s)[:, 0] / ((f * z).sum(-1, keepdim=True) + a.eps))
        out.append(torch.stack(rows, 1))
    return a.o_proj(torch.cat(out, -1))


def equal(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def state_cache(a, n_rows, layers=1):
    weight = a.k_proj.weight
    shape = CacheShape(layers, 0, 0, 0, weight.dtype, weight.device, (a.state,) * layers)
    return StateCache(shape, n_rows, 99)


def fed(a, x, widths, cache=None):
    """The outputs as decoding computes them, a few tokens at a time."""
    cache, out, done = cache or state_cache(a, len(x)), [], 0
    for width in widths:
        pos = torch.arange(done, done + width).expand(len(x), -1)
        cache.prepare_step(range(len(x)), pos)
        out.append(a(x[:, done : done + width], pos, cache.layers[0]))
        done += width
    assert done == x.size(1)
    return torch.cat(out, 1)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_parallel_form_is_its_equation(options, n_kv_heads):
    a, x = layer(n_kv_heads=n_kv_heads, **options), torch.randn(2, 7, C, dtype=torch.double)
    wanted = reference(a, x, phi=options.get("feature_map", "elu"))
    equal(a(x), wanted)
    equal(a(x, torch.arange(7).expand(2, 7)), wanted)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_chunked_form_is_the_causal_equation_whatever_the_chunk(options, n_kv_heads):
    a = layer(n_kv_heads=n_kv_heads, causal=True, **options)
    x, phi = torch.randn(2, 7, C, dtype=torch.double), options.get("feature_map", "elu")
    wanted = reference(a, x, phi=phi)
    if "position" not in options:
        equal(as_rnn(a, x, phi), wanted)
    for chunk in (1, 2, 3, 7, 64):
        a.chunk = chunk
        equal(a(x), wanted)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("scaling", ["yarn", "longrope"])
@pytest.mark.parametrize("causal", [False, True])
def test_positions_that_sharpen_scores_leave_the_output_as_large_as_the_values(causal, scaling, fraction):
    """A lone token gives its value, and without the factor all tokens give the same but for eps."""
    pairs = {"short": [1.0] * int(2 * fraction), "long": [1.5] * int(2 * fraction)}
    more = pairs if scaling == "longrope" else {}
    position = partial(Rope, scaling=scaling, factor=4.0, original_len=16, fraction=fraction, **more)
    a, x = layer(causal=causal, position=position, chunk=3), torch.randn(2, 7, C, dtype=torch.double)
    assert a.position.attention_factor > 1.1
    alone = torch.cat([v for *_, v in heads(a, x[:, :1], x[:, :1])], -1)
    equal(a(x[:, :1]), a.o_proj(alone), 1e-5)
    if fraction == 1:
        found, a.position.attention_factor, a.position._memo = a(x), 1.0, MemoizeLast()
        equal(found, a(x), 1e-5)


@pytest.mark.parametrize("widths", [[1] * 11, [4, 1, 1, 5], [11], [1, 10]], ids=str)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_recurrent_form_equals_the_others(options, n_kv_heads, widths):
    rounding = (
        1e-4 if options.get("feature_map") == "square" else 1e-5
    )  # (x . y)^2 near 0 is a sum that cancels
    for dtype, atol in ((torch.double, 1e-10), (torch.float, rounding)):
        a = layer(n_kv_heads=n_kv_heads, causal=True, chunk=3, dtype=dtype, **options)
        x = torch.randn(2, 11, C, dtype=dtype)
        equal(fed(a, x, widths), a(x), atol)


@pytest.mark.parametrize("options", [{}, {"position": Rope}], ids=str)
def test_padding_inside_a_step_and_steps_of_some_rows_leave_no_trace(options):
    a, x = layer(causal=True, chunk=2, **options), torch.randn(3, 6, C, dtype=torch.double)
    whole, cache, out = a(x), state_cache(a, 3), torch.zeros(3, 6, C, dtype=torch.double)
    steps = [
        ([0, 1, 2], [[0, 1, -1], [-1, -1, 0], [0, -1, 1]]),
        ([2, 0], [[2, 3], [-1, 2]]),
        ([1], [[1, 2, 3, 4, 5]]),
        ([0, 2], [[3], [-1]]),
        ([0, 1, 2], [[4, 5], [-1, -1], [4, 5]]),
    ]
    for rows, at in steps:
        pos = torch.tensor(at)
        cache.prepare_step(rows, pos)
        junk = torch.randn(*pos.shape, C, dtype=torch.double)
        given = torch.where((pos >= 0)[..., None], x[torch.tensor(rows)[:, None], pos.clamp(min=0)], junk)
        got = a(given, pos, cache.layers[0])
        for i, row in enumerate(rows):
            for t, p in enumerate(at[i]):
                if p >= 0:
                    out[row, p] = got[i, t]
    equal(out, whole)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("options", [o for o in OPTIONS if "position" not in o], ids=str)
def test_a_source_is_folded_once_and_read_by_any_number_of_rows(options, n_kv_heads):
    """Row i reads row i // n of the memory, padding of the source has no weight, and rows of it can be chosen."""
    a, phi = layer(n_kv_heads=n_kv_heads, **options), options.get("feature_map", "elu")
    source, x = torch.randn(3, 5, C, dtype=torch.double), torch.randn(6, 4, C, dtype=torch.double)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1, 0, 1, -1, -1], [0, 1, 2, -1, -1]])
    memory = a.project_kv(source, pos).contiguous_for_decoding()
    assert memory.sums[0].shape == (3, *a.state[0])
    own = [source[0], source[1, 1:3], source[2, :3]]
    wanted = torch.cat([reference(a, x[2 * i : 2 * i + 2], own[i].expand(2, -1, -1), phi) for i in range(3)])
    equal(a(x, memory=memory), wanted)
    equal(
        a(x[:2], torch.tensor([[90], [91]]) + torch.arange(4), memory=memory.select(torch.tensor([0]))),
        wanted[:2],
    )
    few = memory.select(torch.tensor([2, 0]))
    equal(a(torch.cat([x[4:], x[:2]]), memory=few), torch.cat([wanted[4:], wanted[:2]]))


@pytest.mark.parametrize("kind", [LinearAttention, KernelAttention])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_sees_nothing_gives_zero_and_no_gradient(kind, causal):
    a = layer(kind, causal=causal, bias=False)
    x = torch.randn(2, 5, C, dtype=torch.double, requires_grad=True)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1] * 5])
    out = a(x, pos)
    assert (out[1] == 0).all()
    out.sum().backward()
    assert (x.grad[1] == 0).all()
    assert all(p.grad.isfinite().all() for p in a.parameters())
    memory = a.project_kv(x.detach(), pos)
    assert (a(x, memory=memory)[1] == 0).all()


def test_gradients_are_those_of_the_equation():
    a, x = layer(causal=True, chunk=3), torch.randn(2, 7, C, dtype=torch.double)
    grads = []
    for f in (a, lambda x: reference(a, x)):
        given, weight = x.clone().requires_grad_(), torch.arange(2 * 7 * C, dtype=torch.double).sin()
        a.zero_grad()
        (f(given).flatten() * weight).sum().backward()
        grads.append([given.grad, *(p.grad for p in a.parameters())])
    for got, wanted in zip(*grads, strict=True):
        equal(got, wanted, 1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_sums_are_kept_in_fp32(causal):
    """4,000 tokens summed in bf16 would lose all but the first few hundred."""
    a, x = layer(causal=causal, dtype=torch.float), torch.randn(1, 4000, C)
    x[:, 2000:] += 1  # so that the second half matters
    exact = a.double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = a.float()(x)
        memory = a.project_kv(x, None)
    assert mixed.dtype == torch.bfloat16
    assert memory.sums[0].dtype == torch.float32
    equal(mixed.double(), exact, 0.03)
    low = a.to(torch.bfloat16)
    cache = state_cache(low, 1)
    assert cache.layers[0].tensors[0].dtype == torch.float32
    if causal:
        equal(fed(low, x.to(torch.bfloat16), [1500, 1, 2499], cache).double(), exact, 0.06)


def saved(f):
    """Sizes of the tensors that the backward pass of f will read, each storage once."""
    seen = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: seen.setdefault(t.untyped_storage().data_ptr(), t.untyped_storage()) and t, lambda t: t
    ):
        kept = f()
    del kept
    return [storage.nbytes() for storage in seen.values()]


@pytest.mark.parametrize("options", [{}, {"position": Rope}, {"feature_map": "square"}], ids=str)
def test_memory_of_training_grows_with_the_length_alone(options):
    """Twice the tokens, twice the bytes, and never a matrix a token."""
    a = layer(causal=True, dtype=torch.float, head_dim=8, chunk=16, **options)
    used = {T: saved(lambda T=T: a(torch.randn(1, T, C, requires_grad=True))) for T in (512, 1024)}
    assert sum(used[1024]) < 2.05 * sum(used[512])
    P, X = a.n_features, a.v_head_dim + 1
    assert max(used[1024]) < 4 * H * 1024 * P * X / 2
    b = layer(KernelAttention, causal=True, dtype=torch.float)
    square = {T: saved(lambda T=T: b(torch.randn(1, T, C, requires_grad=True))) for T in (512, 1024)}
    assert sum(square[1024]) > 3.5 * sum(square[512])


def test_the_state_does_not_grow():
    a, sizes = layer(causal=True), []
    cache = state_cache(a, 2)
    for t in range(40):
        pos = torch.full((2, 1), t)
        cache.prepare_step(range(2), pos)
        a(torch.randn(2, 1, C, dtype=torch.double), pos, cache.layers[0])
        sizes.append(cache.nbytes)
    assert set(sizes) == {2 * 2 * D * (D + 1) * 8}


@pytest.mark.parametrize("position", [Position, Rope])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_watchers_see_the_weights_that_the_sums_stand_for(n_kv_heads, causal, position):
    a = layer(n_kv_heads=n_kv_heads, causal=causal, position=position, chunk=3, bias=False)
    x, pos = torch.randn(2, 5, C, dtype=torch.double), torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    plain, watched = a(x, pos), []
    a.weights_hooks.append(watched.append)
    assert torch.equal(a(x, pos), plain)
    (weights,) = watched
    assert weights.shape == (2, H, 5, 5)
    v = a.v_proj(x).unflatten(-1, (n_kv_heads, D)).transpose(1, 2).repeat_interleave(H // n_kv_heads, 1)
    equal(a.o_proj((weights @ v).transpose(1, 2).flatten(2)), plain)
    assert (weights[1, :, :, 2:] == 0).all()
    if causal:
        assert (weights.triu(1) == 0).all()
    if position is Position:
        equal(weights[0].sum(-1), torch.ones(H, 5, dtype=torch.double), 1e-5)


def test_watchers_see_a_source_remembered_under_their_eyes_and_no_folded_past():
    a, x = layer(), torch.randn(4, 3, C, dtype=torch.double)
    source, watched = torch.randn(2, 5, C, dtype=torch.double), []
    blind = a.project_kv(source, None)
    a.weights_hooks.append(watched.append)
    memory = a.project_kv(source, None)
    out = a(x, memory=memory)
    assert torch.equal(a(x, memory=blind), out)
    (weights,) = watched
    v = a.v_proj(source).unflatten(-1, (2, D)).transpose(1, 2).repeat_interleave(3, 1).repeat_interleave(2, 0)
    equal(a.o_proj((weights @ v).transpose(1, 2).flatten(2)), out)
    chosen = memory.select(torch.tensor([1]))
    assert torch.equal(chosen.keys[0], memory.keys[1])
    a, watched = layer(causal=True), []
    a.weights_hooks.append(watched.append)
    fed(a, x, [2, 1])
    assert not watched


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in SIMILARITY.names() if name in FEATURE_MAP.names()])
def test_the_kernel_written_out_equals_the_linear_form(name, causal, n_kv_heads):
    """sum_j sim(q, k_j) v_j / sum_j sim(q, k_j), eq. 3, with the same parameters."""
    linear = layer(n_kv_heads=n_kv_heads, causal=causal, feature_map=name, chunk=3)
    kernel = layer(KernelAttention, n_kv_heads=n_kv_heads, causal=causal, sim=name)
    x, source = (torch.randn(4, n, C, dtype=torch.double) for n in (7, 5))
    pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]] * 2)
    seen = pos >= 0
    equal(kernel(x, pos)[seen], linear(x, pos)[seen])
    equal(kernel(x), linear(x))
    if not causal:
        equal(*(a(x, memory=a.project_kv(source[:2], pos[:2, :5])) for a in (kernel, linear)))


@pytest.mark.parametrize("position", [Position, Rope])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_of_exp_is_softmax(causal, n_kv_heads, position):
    kernel, soft = (
        layer(kind, n_kv_heads, causal, position, **options)
        for kind, options in ((KernelAttention, {"sim": "exp", "eps": 1e-15}), (Attention, {}))
    )
    x, source = (torch.randn(4, n, C, dtype=torch.double) for n in (7, 5))
    pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]] * 2)
    watched = {a: [] for a in (kernel, soft)}
    for a in (kernel, soft):
        a.weights_hooks.append(watched[a].append)
    equal(kernel(x, pos), soft(x, pos))
    if not causal:
        equal(*(a(x, memory=a.project_kv(source[:2], pos[:2, :5])) for a in (kernel, soft)))
    for got, wanted in zip(watched[kernel], watched[soft], strict=True):
        equal(got, wanted)


def test_the_kernel_keeps_keys_and_values_in_any_cache():
    a, x = layer(KernelAttention, causal=True, sim="square"), torch.randn(2, 5, C, dtype=torch.double)
    assert a.state is None
    cache = StaticCache(CacheShape(1, 2, D, D, torch.double, torch.device("cpu")), 2, 9)
    equal(fed(a, x, [2, 1, 2], cache), a(x))
    kv = a.project_kv(x, None).replace(log_count=torch.tensor([1.0, 2, 1, 1, 3]).log().expand(2, 2, 5))
    twice = a.project_kv(x[:, [0, 1, 1, 2, 3, 4, 4, 4]], None)
    equal(
        layer(KernelAttention, sim="square")(x, memory=kv),
        layer(KernelAttention, sim="square")(x, memory=twice),
    )


MINE = """
import torch
def double(x): return torch.cat([x.exp(), (-x).exp()], -1)
def same(q, k): return double(q) @ double(k).mT
def number(x): return 3
def short(x): return x.sum(-1)
def broken(x): return x @ x
"""


def test_a_feature_map_or_similarity_of_ones_own_is_a_name_away(tmp_path, monkeypatch):
    (tmp_path / "mine_of_linear.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_linear", raising=False)
    x = torch.randn(2, 5, C, dtype=torch.double)
    a = layer(causal=True, feature_map="mine_of_linear:double", chunk=2)
    assert a.state == ((2, 2 * D, D + 1),)
    equal(a(x), layer(KernelAttention, causal=True, sim="mine_of_linear:same")(x))
    for name, message in (
        ("number", "makes a int"),
        ("short", r"makes shape \(1, 2, 3\)"),
        ("broken", "fails on"),
    ):
        with pytest.raises(UserError, match=f"feature_map 'mine_of_linear:{name}' {message}"):
            layer(feature_map=f"mine_of_linear:{name}")


@pytest.mark.parametrize("name", FEATURE_MAP.names())
def test_features_are_not_negative_and_have_the_product_of_the_definition(name):
    phi, x, y = FEATURE_MAP.get(name), *torch.randn(2, 50, 5, dtype=torch.double).unbind(0)
    equal((phi(x) * phi(y)).sum(-1), (PHI[name](x) * PHI[name](y)).sum(-1))
    assert ((phi(x) @ phi(y).mT) >= 0).all()
    assert phi(x).shape == (50, 15 if name == "square" else 5)


def test_elu_is_exact_far_below_zero_and_has_the_gradient_of_elu():
    x = torch.linspace(-60, 40, 301).requires_grad_()
    phi = FEATURE_MAP.get("elu")
    torch.testing.assert_close(phi(x), torch.where(x > 0, x + 1, x.exp()), rtol=1e-6, atol=0)
    (got,) = torch.autograd.grad((phi(x) * x.detach()).sum(), x)
    (wanted,) = torch.autograd.grad((torch.nn.functional.elu(x) * x.detach()).sum(), x)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-30)


class Bias(Position):
    def bias(self, q, kv, pos, scale=None):
        return q.new_zeros(1, 1, q.size(2), kv.k.size(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk of attention 'linear' is 0, wanted at least 1 token"),
        ({"eps": 0.0}, "above 0, not 0.0"),
        ({"kind": KernelAttention, "eps": -1.0}, "above 0, not -1.0"),
        ({"tie": "qk"}, "as many key heads as query heads: n_kv_heads=6"),
        ({"feature_map": "elo"}, "unknown feature_map 'elo'; did you mean 'elu'"),
        ({"kind": KernelAttention, "sim": "epx"}, "unknown similarity 'epx'; did you mean 'exp'"),
        ({"position": Bias}, "take position rope, sinusoidal, learned or none, or attention softmax"),
        ({"kind": KernelAttention, "position": Bias}, "take position rope, sinusoidal"),
        (
            {"position": Rope, "feature_map": "square"},
            "makes 10 features of a head's 4, .* take feature_map elu",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        layer(**options)
