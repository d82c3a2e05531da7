import itertools
import math

import pytest
import torch
from tests.nn.position.relative_distance_helpers import POSITIONS, iter_positions, make_inputs, make_scheme

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.relative import Alibi, Shaw, T5Bias

SCHEMES = [
    ("alibi", {}),
    ("t5", {}),
    ("t5", {"buckets": 6, "max_distance": 4}),
    ("shaw", {}),
    ("shaw", {"clip": 2}),
]


def t5_bucket(distance, buckets, max_distance, causal):
    """Raffel et al., 2020, one integer at a time, as in their code."""
    side = buckets if causal else buckets // 2
    first = 0 if causal or distance <= 0 else side
    n = max(0, -distance) if causal else abs(distance)
    exact = side // 2
    if n < exact:
        return first + n
    log_index = int(math.log(n / exact) / math.log(max_distance / exact) * (side - exact))
    return first + min(side - 1, exact + log_index)


def clip_distance(scheme, distance):
    return min(max(distance, -scheme.clip), scheme.clip) + scheme.clip


def compute_biases(scheme, q, q_pos, k_pos, scale, n_slots=5):
    (B, H, T, _), biases, q = q.shape, {}, q.detach()
    for index, i, j in iter_positions(q_pos, k_pos, T, H, B, n_slots):
        b, h, t, _ = index
        if getattr(scheme, "causal", False) and j > i:
            continue
        if isinstance(scheme, Alibi):
            biases[index] = -(2 ** (-8 * (h + 1) / H)) * abs(i - j)
        elif isinstance(scheme, T5Bias):
            bucket = t5_bucket(j - i, scheme.buckets, scheme.max_distance, scheme.causal)
            biases[index] = float(scheme.weight.data[bucket, h])
        else:
            biases[index] = float(q[b, h, t] @ scheme.key.data[clip_distance(scheme, j - i)]) * scale
    return biases


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(("name", "options"), SCHEMES, ids=str)
def test_biases_equal_their_equations(name, options, positions, causal):
    scheme, (q, kv, q_pos, k_pos) = make_scheme(name, causal=causal, **options), make_inputs(positions)
    for scale in (None, 0.7):
        output = scheme.bias(q, kv, q_pos, scale).detach().expand(3, -1, -1, -1)
        assert output.shape == (3, 4, q.size(2), 5) and output.isfinite().all()
        expected = compute_biases(scheme, q, q_pos, k_pos, 3**-0.5 if scale is None else scale)
        assert len(expected) > 20
        for index, bias in expected.items():
            assert float(output[index]) == pytest.approx(bias, rel=1e-6, abs=1e-12), index


@pytest.mark.parametrize(("name", "options"), [*SCHEMES, ("shaw", {"values": False})], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("changes", [{}, {"scale": 0.3}, {"qk_norm": True, "softcap": 2.0}], ids=str)
@torch.no_grad()
def test_attention_adds_biases_after_the_softcap(name, options, causal, changes):
    position = make_scheme(name, causal=causal, **options)
    shape = AttentionShape.from_sizes(12, 4, 2, head_dim=3, v_head_dim=2, causal=causal)
    a, x = Attention(shape, position, **changes).double(), torch.randn(2, 7, 12, dtype=torch.double)
    projections = ((a.q_proj, 3), (a.k_proj, 3), (a.v_proj, 2))
    q, k, v = (proj(x).unflatten(-1, (-1, n)).transpose(1, 2) for proj, n in projections)
    q, k, cap, scale = a.q_norm(q), a.k_norm(k), changes.get("softcap"), changes.get("scale", 3**-0.5)
    biases = compute_biases(position, q, None, None, scale, n_slots=7)
    expected = torch.zeros(2, 7, 4, 2, dtype=torch.double)
    for h in range(4):
        scores = q[:, h] @ k[:, h // 2].mT * scale
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        for b, t in itertools.product(range(2), range(7)):
            slots = range(t + 1 if causal else 7)
            exps = [math.exp(float(scores[b, t, s]) + biases[b, h, t, s]) for s in slots]
            for s, e in zip(slots, exps, strict=True):
                has_values = isinstance(position, Shaw) and position.adds_values
                vector = position.value[clip_distance(position, s - t)] if has_values else 0
                expected[b, t, h] += e / sum(exps) * (v[b, h // 2, s] + vector)
    expected = a.o_proj(expected.flatten(2))
    torch.testing.assert_close(a(x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(a(x, torch.arange(7).expand(2, 7)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    ("name", "options"), [("t5", {"buckets": 6, "max_distance": 4}), ("shaw", {"clip": 2})], ids=str
)
def test_gradients_equal_finite_differences(name, options, positions):
    scheme, (q, kv, q_pos, _) = make_scheme(name, **options), make_inputs(positions)

    def compute(q, *tables):
        bias = scheme.bias(q, kv, q_pos)
        values = scheme.values(bias.expand(3, -1, -1, -1).sigmoid(), kv, q_pos)
        return bias if values is None else (bias, values)

    assert torch.autograd.gradcheck(compute, (q.requires_grad_(), *scheme.parameters()), fast_mode=True)
