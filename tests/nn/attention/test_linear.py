from functools import partial

import pytest
import torch
from tests.nn.linear_helpers import (
    PHI,
    C,
    D,
    H,
    assert_close,
    decode_in_steps,
    draw,
    make_attention,
    make_state_cache,
)

from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope

OPTIONS = [
    {},
    {"feature_map": "relu"},
    {"feature_map": "square", "v_head_dim": 3},
    {"position": Rope},
    {"tie": "kv", "bias": False},
    {"head_dim": 2, "v_head_dim": 5, "eps": 0.1},
]


def split_heads(a, x, source):
    D, V, group = a.head_dim, a.v_head_dim, a.q_proj.out_features // a.k_proj.out_features
    q, k, v = a.q_proj(x), a.k_proj(source), a.v_proj(source)
    for h in range(H):
        g = h // group
        yield q[..., h * D : h * D + D], k[..., g * D : g * D + D], v[..., g * V : g * V + V]


def reference(a, x, source=None, phi="elu"):
    """Query by query: eq. 4, and eq. 8 if causal; RoFormer's eq. 19 with rotary positions."""
    phi, is_self, source = PHI[phi], source is None, x if source is None else source
    heads = []
    for q, k, v in split_heads(a, x, source):
        outputs, f, g = [], phi(q), phi(k)
        if is_self:
            f, g = (a.position.rotate(y[:, None], None)[:, 0] for y in (f, g))
        for i in range(x.size(1)):
            numerator, denominator = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0, :1])
            for j in range(i + 1 if a.causal and is_self else source.size(1)):
                numerator += (f[:, i] * g[:, j]).sum(-1, keepdim=True) * v[:, j]
                denominator += (phi(q[:, i]) * phi(k[:, j])).sum(-1, keepdim=True)
            outputs.append(numerator / (denominator + a.eps))
        heads.append(torch.stack(outputs, 1))
    return a.o_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parallel_and_chunked_forms_equal_their_equation(options, n_kv_heads):
    x, phi = draw(2, 7), options.get("feature_map", "elu")
    a = make_attention(n_kv_heads=n_kv_heads, **options)
    expected = reference(a, x, phi=phi)
    assert_close(a(x), expected)
    assert_close(a(x, torch.arange(7).expand(2, 7)), expected)
    a = make_attention(n_kv_heads=n_kv_heads, causal=True, **options)
    expected = reference(a, x, phi=phi)
    for a.chunk in (1, 2, 3, 7, 64):
        assert_close(a(x), expected)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("scaling", ["yarn", "longrope"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_factor_cancels_in_the_output(causal, scaling, fraction):
    """A single token gives its value, and without the factor all tokens give the same up to eps."""
    pairs = {"short": [1.0] * int(2 * fraction), "long": [1.5] * int(2 * fraction)}
    options = pairs if scaling == "longrope" else {}
    position = partial(Rope, scaling=scaling, factor=4.0, original_len=16, fraction=fraction, **options)
    a, x = make_attention(causal=causal, position=position, chunk=3), draw(2, 7)
    assert a.position.attention_factor > 1.1
    values = torch.cat([v for *_, v in split_heads(a, x[:, :1], x[:, :1])], -1)
    assert_close(a(x[:, :1]), a.o_proj(values), 1e-5)
    if fraction == 1:
        output, a.position.attention_factor = a(x), 1.0
        assert_close(output, a(x), 1e-5)


@pytest.mark.parametrize("widths", [[1] * 11, [4, 1, 1, 5], [11], [1, 10]], ids=str)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recurrent_form_equals_the_chunked_form(options, n_kv_heads, widths):
    # in fp32 (x . y)^2 near 0 is a sum that cancels, and processors add it in different orders
    rounding = 2e-3 if options.get("feature_map") == "square" else 1e-5
    for dtype, atol in ((torch.double, 1e-10), (torch.float, rounding)):
        a = make_attention(n_kv_heads=n_kv_heads, causal=True, chunk=3, dtype=dtype, **options)
        x = draw(2, 11).to(dtype)
        assert_close(decode_in_steps(a, x, widths), a(x), atol)


@pytest.mark.parametrize("options", [{}, {"position": Rope}], ids=str)
def test_padding_in_steps_has_no_effect(options):
    a, x = make_attention(causal=True, chunk=2, **options), draw(3, 6)
    cache, output = make_state_cache(a, 3), torch.zeros_like(x)
    steps = [
        ([0, 1, 2], [[0, 1, -1], [-1, -1, 0], [0, -1, 1]]),
        ([2, 0], [[2, 3], [-1, 2]]),
        ([1], [[1, 2, 3, 4, 5]]),
        ([0, 2], [[3], [-1]]),
        ([0, 1, 2], [[4, 5], [-1, -1], [4, 5]]),
    ]
    for rows, positions in steps:
        pos, index = torch.tensor(positions), torch.tensor(rows)[:, None]
        cache.prepare_step(rows, pos)
        is_token = (pos >= 0)[..., None]
        inputs = torch.where(is_token, x[index, pos.clamp(min=0)], draw(*pos.shape))
        step = a(inputs, pos, cache.layers[0])
        output[index.expand_as(pos)[pos >= 0], pos[pos >= 0]] = step[pos >= 0]
    assert_close(output, a(x))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("options", [o for o in OPTIONS if "position" not in o], ids=str)
def test_cross_attention_sums_the_source_once(options, n_kv_heads):
    """Row i reads row i // n of the memory, without padding of the source; its rows can be selected."""
    a, phi = make_attention(n_kv_heads=n_kv_heads, **options), options.get("feature_map", "elu")
    source, x = draw(3, 5), draw(6, 4)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1, 0, 1, -1, -1], [0, 1, 2, -1, -1]])
    memory = a.project_kv(source, pos).contiguous_for_decoding()
    assert memory.sums[0].shape == (3, *a.state[0])
    sources = [source[i, pos[i] >= 0].expand(2, -1, -1) for i in range(3)]
    expected = torch.cat([reference(a, x[2 * i : 2 * i + 2], sources[i], phi) for i in range(3)])
    assert_close(a(x, memory=memory), expected)
    later = torch.tensor([[90], [91]]) + torch.arange(4)
    assert_close(a(x[:2], later, memory=memory.select(torch.tensor([0]))), expected[:2])
    swapped = memory.select(torch.tensor([2, 0]))
    assert_close(a(torch.cat([x[4:], x[:2]]), memory=swapped), torch.cat([expected[4:], expected[:2]]))


def test_gradients_equal_those_of_the_equation():
    a, x = make_attention(causal=True, chunk=3), draw(2, 7)
    gradients, weight = [], torch.arange(2 * 7 * C, dtype=torch.double).sin()
    for f in (a, lambda x: reference(a, x)):
        leaf = x.clone().requires_grad_()
        a.zero_grad()
        (f(leaf).flatten() * weight).sum().backward()
        gradients.append([leaf.grad, *(p.grad for p in a.parameters())])
    for actual, expected in zip(*gradients, strict=True):
        assert_close(actual, expected, 1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_sums_are_fp32(causal):
    """4,000 tokens summed in bf16 would lose all but the first few hundred."""
    a, x = make_attention(causal=causal, dtype=torch.float), draw(1, 4000).float()
    x[:, 2000:] += 1  # so that the second half matters
    exact = a.double()(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = a.float()(x)
        memory = a.project_kv(x, None)
    assert (mixed.dtype, memory.sums[0].dtype) == (torch.bfloat16, torch.float32)
    assert_close(mixed.double(), exact, 0.03)
    low = a.to(torch.bfloat16)
    cache = make_state_cache(low, 1)
    assert cache.layers[0].tensors[0].dtype == torch.float32
    if causal:
        output = decode_in_steps(low, x.to(torch.bfloat16), [1500, 1, 2499], cache)
        assert_close(output.double(), exact, 0.06)


def measure_saved(attention, length):
    storages = {}

    def save(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        attention(torch.randn(1, length, C, requires_grad=True))
    return [storage.nbytes() for storage in storages.values()]


@pytest.mark.parametrize("options", [{}, {"position": Rope}, {"feature_map": "square"}], ids=str)
def test_training_memory_is_linear_in_length(options):
    a = make_attention(causal=True, dtype=torch.float, head_dim=8, chunk=16, **options)
    short, long = (measure_saved(a, n) for n in (512, 1024))
    assert sum(long) < 2.05 * sum(short)
    assert max(long) < 4 * H * 1024 * a.n_features * (a.v_head_dim + 1) / 2
    b = make_attention(KernelAttention, causal=True, dtype=torch.float)
    assert sum(measure_saved(b, 1024)) > 3.5 * sum(measure_saved(b, 512))


@pytest.mark.parametrize("position", [Position, Rope])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_hooks_receive_the_equivalent_weights(n_kv_heads, causal, position):
    a = make_attention(n_kv_heads=n_kv_heads, causal=causal, position=position, chunk=3, bias=False)
    x, pos = draw(2, 5), torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1]])
    output, calls = a(x, pos), []
    a.weights_hooks.append(calls.append)
    assert torch.equal(a(x, pos), output)
    (weights,) = calls
    assert weights.shape == (2, H, 5, 5)
    assert_close(weigh_values(a, weights, x), output)
    assert (weights[1, :, :, 2:] == 0).all()
    assert not causal or (weights.triu(1) == 0).all()
    if position is Position:
        assert_close(weights[0].sum(-1), torch.ones(H, 5, dtype=torch.double), 1e-5)


def weigh_values(a, weights, source):
    n_kv_heads = a.v_proj.out_features // D
    v = a.v_proj(source).unflatten(-1, (n_kv_heads, D)).transpose(1, 2).repeat_interleave(H // n_kv_heads, 1)
    v = v.repeat_interleave(len(weights) // len(v), 0)
    return a.o_proj((weights @ v).transpose(1, 2).flatten(2))


def test_hooks_receive_weights_of_memory_not_states():
    """Only of a memory that was projected after the hook was added."""
    a, x, source, calls = make_attention(), draw(4, 3), draw(2, 5), []
    without_keys = a.project_kv(source, None)
    a.weights_hooks.append(calls.append)
    memory = a.project_kv(source, None)
    output = a(x, memory=memory)
    assert torch.equal(a(x, memory=without_keys), output) and len(calls) == 1
    assert_close(weigh_values(a, calls[0], source), output)
    assert torch.equal(memory.select(torch.tensor([1])).keys[0], memory.keys[1])
    a = make_attention(causal=True)
    a.weights_hooks.append(calls.append)
    decode_in_steps(a, x, [2, 1])
    assert len(calls) == 1
