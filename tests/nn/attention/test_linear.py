"""Linear attention against loops written from its paper (Katharopoulos et al., 2020), and its forms against
each other.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.nn.linear_helpers import PHI, equal, fed, layer, state_cache

from polyhead.core.errors import UserError
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope

C, H, D = 12, 6, 4
OPTIONS = [
    {},
    {"feature_map": "relu"},
    {"feature_map": "square", "v_head_dim": 3},
    {"position": Rope},
    {"tie": "kv", "bias": False},
    {"head_dim": 2, "v_head_dim": 5, "eps": 0.1},
]


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
    """Head by head, query by query: eq. 4, and eq. 8 where it is causal; RoFormer's eq. 19 where positions
    turn heads.

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
        found, a.position.attention_factor = a(x), 1.0
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
    """Row i reads row i // n of the memory, padding of the source has no weight, and rows of it can be
    chosen.
    """
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


class Bias(Position):
    def bias(self, q, kv, pos, scale=None):
        return q.new_zeros(1, 1, q.size(2), kv.k.size(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk of attention 'linear' is 0, expected at least 1 token"),
        ({"eps": 0.0}, "above 0, .*not 0.0"),
        ({"kind": KernelAttention, "eps": -1.0}, "above 0, .*not -1.0"),
        ({"tie": "qk"}, "as many key heads as query heads: n_kv_heads=6"),
        ({"feature_map": "elo"}, "unknown feature_map 'elo'; did you mean 'elu'"),
        ({"kind": KernelAttention, "sim": "epx"}, "unknown similarity 'epx'; did you mean 'exp'"),
        ({"position": Bias}, "use position rope, sinusoidal, learned or none, or attention softmax"),
        ({"kind": KernelAttention, "position": Bias}, "use position rope, sinusoidal"),
        (
            {"position": Rope, "feature_map": "square"},
            "maps the 4 features of a head to 10, .* use feature_map elu",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        layer(**options)
