"""Schemes that act on the scores, against loops in double precision and against Hugging Face Transformers."""

import itertools
import math

import pytest
import torch
from tests.nn.position.relative_distance_helpers import PLACES, scheme

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import KV
from polyhead.nn.position.alibi import Alibi
from polyhead.nn.position.shaw import Shaw
from polyhead.nn.position.t5 import T5Bias


def bucket_of(distance, buckets, max_distance, causal):
    """Raffel et al., 2020, as their code has it, an integer at a time."""
    side = buckets if causal else buckets // 2
    first = 0 if causal or distance <= 0 else side
    n = max(0, -distance) if causal else abs(distance)
    exact = side // 2
    if n < exact:
        return first + n
    return first + min(
        side - 1, exact + int(math.log(n / exact) / math.log(max_distance / exact) * (side - exact))
    )


def biases(made, q, q_pos, k_pos, slots, scale):
    """{(b, h, t, s): bias} of every query and slot that are not empty."""
    (B, H, T, D), found, q = q.shape, {}, q.detach()
    for b, h, t, s in itertools.product(range(B), range(H), range(T), range(slots)):
        own = 0 if k_pos is None or k_pos.size(1) == 1 else h // (H // k_pos.size(1))
        at = t if q_pos is None else int(q_pos[b, t])
        to = s if k_pos is None else int(k_pos[b, own, s])
        if at < 0 or to < 0 or (made_causal(made) and to > at):
            continue
        if isinstance(made, Alibi):
            found[b, h, t, s] = -(2 ** (-8 * (h + 1) / H)) * abs(at - to)
        if isinstance(made, T5Bias):
            found[b, h, t, s] = float(
                made.weight.data[bucket_of(to - at, made.buckets, made.max_distance, made.causal), h]
            )
        if isinstance(made, Shaw):
            vector = made.key.data[min(max(to - at, -made.clip), made.clip) + made.clip]
            found[b, h, t, s] = sum(float(q[b, h, t, d] * vector[d]) for d in range(D)) * scale
    return found


def made_causal(made):
    return getattr(made, "causal", False)


SCHEMES = [
    ("alibi", {}),
    ("t5", {}),
    ("t5", {"buckets": 6, "max_distance": 4}),
    ("shaw", {}),
    ("shaw", {"clip": 2}),
]


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "options"), SCHEMES, ids=str)
def test_biases_are_their_equations(name, options, place, causal):
    made = scheme(name, causal=causal, **options)
    q_pos, k_pos = PLACES[place]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double)
    kv = KV(torch.randn(3, 2, 5, 3).double(), torch.randn(3, 2, 5, 2).double(), k_pos)
    for scale in (None, 0.7):
        out = made.bias(q, kv, q_pos, scale).detach().expand(3, -1, -1, -1)
        assert out.shape == (3, 4, q.size(2), 5)
        assert out.isfinite().all()
        wanted = biases(made, q, q_pos, k_pos, 5, 3**-0.5 if scale is None else scale)
        assert len(wanted) > 20
        for at, bias in wanted.items():
            assert float(out[at]) == pytest.approx(bias, rel=1e-6, abs=1e-12), at


@pytest.mark.parametrize(("name", "options"), [*SCHEMES, ("shaw", {"values": False})], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("more", [{}, {"scale": 0.3}, {"qk_norm": True, "softcap": 2.0}], ids=str)
@torch.no_grad()
def test_the_layer_adds_them_to_its_equation(name, options, causal, more):
    """Head by head; the bias is outside the soft-cap."""
    position = scheme(name, causal=causal, **options)
    shape = AttentionShape.from_sizes(12, 4, 2, head_dim=3, v_head_dim=2, causal=causal)
    a = Attention(shape, position, **more).double()
    x = torch.randn(2, 7, 12, dtype=torch.double)
    scale = more.get("scale", 3**-0.5)
    split = [
        y.unflatten(-1, (-1, n)).transpose(1, 2)
        for y, n in ((a.q_proj(x), 3), (a.k_proj(x), 3), (a.v_proj(x), 2))
    ]
    q, k, v = a.q_norm(split[0]), a.k_norm(split[1]), split[2]
    added = biases(position, q, None, None, 7, scale)
    heads = []
    for h in range(4):
        products = q[:, h] @ k[:, h // 2].mT * scale
        cap = more.get("softcap")
        products = products if cap is None else cap * torch.tanh(products / cap)
        out = torch.zeros(2, 7, 2, dtype=torch.double)
        for b, t in itertools.product(range(2), range(7)):
            there = range(t + 1 if causal else 7)
            exps = [math.exp(float(products[b, t, s]) + added[b, h, t, s]) for s in there]
            for s, e in zip(there, exps, strict=True):
                value = v[b, h // 2, s]
                if isinstance(position, Shaw) and position.adds_values:
                    value = (
                        value + position.value[min(max(s - t, -position.clip), position.clip) + position.clip]
                    )
                out[b, t] += e / sum(exps) * value
        heads.append(out)
    wanted = a.o_proj(torch.cat(heads, -1))
    torch.testing.assert_close(a(x), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(a(x, torch.arange(7).expand(2, 7)), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_what_is_learned_gets_the_gradient_of_finite_differences(name, place):
    made = scheme(name, **{"t5": {"buckets": 6, "max_distance": 4}, "shaw": {"clip": 2}}[name])
    q_pos, k_pos = PLACES[place]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double, requires_grad=True)
    kv = KV(torch.randn(3, 2, 5, 3).double(), torch.randn(3, 2, 5, 2).double(), k_pos)

    def both(q, *tables):
        bias = made.bias(q, kv, q_pos)
        more = made.values(bias.expand(3, -1, -1, -1).sigmoid(), kv, q_pos)
        return bias if more is None else (bias, more)

    assert torch.autograd.gradcheck(both, (q, *made.parameters()))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("t5", {"buckets": 2}, "buckets of t5 is 2; .* try 4"),
        ("t5", {"buckets": 7}, "try 8"),
        ("t5", {"max_distance": 16}, "max_distance of t5 is 16; .* at least 17"),
        ("shaw", {"clip": 0}, "clip of shaw is 0; .* at least 1"),
    ],
)
def test_options_that_make_no_sense_are_user_errors(name, options, said):
    with pytest.raises(UserError, match=said):
        POSITION.get(name)(AttentionShape.from_sizes(8, 2), **options)
