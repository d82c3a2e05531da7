"""Vectors of distances that attention projects, against loops in double precision and against Hugging Face
Transformers.
"""

import itertools
import math

import pytest
import torch
from tests.nn.position.relative_distance_helpers import PLACES, scheme

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import KV, split_heads
from polyhead.nn.position import disentangled
from polyhead.nn.position.disentangled import DisentangledPosition, log_bucket_index, near_index_range

OPTIONS = [
    {"span": 5, "max_distance": 9},
    {"span": 4, "max_distance": 40, "terms": "p2c"},
    {"span": 3, "max_distance": None, "terms": "c2p"},
    {"span": 20, "max_distance": None, "norm_eps": None},
]


def row_of(distance, span, max_distance):
    """The row of the table: He et al., 2021a, eq. 3, and the log buckets of DeBERTa-v2's code, an integer at
    a time.
    """
    middle, size = span // 2, abs(distance)
    if max_distance is not None and size > middle:
        wide = middle + math.ceil(
            math.log(size / middle) / math.log((max_distance - 1) / middle) * (middle - 1)
        )
        distance = wide if distance > 0 else -wide
    return min(max(distance + span, 0), 2 * span - 1)


def normed(vector, made):
    if made.norm is None:
        return vector
    mean = sum(vector) / len(vector)
    spread = math.sqrt(sum((x - mean) ** 2 for x in vector) / len(vector) + made.norm.eps)
    return [
        float(g * (x - mean) / spread + b)
        for x, g, b in zip(vector, made.norm.weight, made.norm.bias, strict=True)
    ]


def projection(heads):
    """Of 12 features to the heads' 3, each its own."""
    return torch.randn(heads, 12, 3, dtype=torch.double)


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_scores_are_the_equation_pair_by_pair(options, place):
    made = scheme("disentangled", **options)
    (to_q, to_k), (q_pos, k_pos) = (projection(4), projection(2)), PLACES[place]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double)
    kv = KV(torch.randn(3, 2, 5, 3).double(), torch.randn(3, 2, 5, 2).double(), k_pos)
    found = made.scores(q, kv, q_pos, 0.7, lambda x: (x @ to_q, x @ to_k)).expand(3, -1, -1, -1)
    assert found.shape == (3, 4, q.size(2), 5)
    assert found.isfinite().all()
    table, seen = [normed(row, made) for row in made.weight.tolist()], 0
    for b, h, t, s in itertools.product(range(3), range(4), range(q.size(2)), range(5)):
        at = t if q_pos is None else int(q_pos[b, t])
        to = s if k_pos is None else int(k_pos[b, h // 2 if k_pos.size(1) > 1 else 0, s])
        if at < 0 or to < 0:
            continue
        vector = torch.tensor(table[row_of(at - to, made.span, made.max_distance)], dtype=torch.double)
        wanted = 0.0
        if made.terms != "p2c":
            wanted += 0.7 * dot(q[b, h, t], vector @ to_k[h // 2])
        if made.terms != "c2p":
            wanted += 0.7 * dot(kv.k[b, h // 2, s], vector @ to_q[h])
        assert float(found[b, h, t, s]) == pytest.approx(wanted, rel=1e-6, abs=1e-9), (b, h, t, s)
        seen += 1
    assert seen > 20


@pytest.mark.parametrize(
    ("span", "max_distance"), [(256, 512), (256, 130), (32, 128), (5, 40), (2, 3), (3, 300), (48, None)]
)
def test_buckets_are_those_of_hugging_face(span, max_distance):
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distance = torch.arange(-600, 601)
    theirs = distance
    if max_distance is not None:
        theirs = modeling.make_log_bucket_position(distance, span, max_distance).long()
    ours = log_bucket_index(distance, span, max_distance)
    assert torch.equal(ours, theirs.clamp(-span, span - 1))
    for far in (0, 1, span // 2, span // 2 + 1, span, 100, 600):
        there = near_index_range(far, span, max_distance)
        read = ours[distance.abs() <= far] + span
        assert there.start <= int(read.min()) <= int(read.max()) < there.stop <= 2 * span


@pytest.mark.parametrize("place", PLACES)
def test_vectors_that_no_pair_reads_change_nothing(place, monkeypatch):
    made, to_q, to_k = scheme("disentangled", span=40, max_distance=100), projection(4), projection(2)
    q_pos, k_pos = PLACES[place]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double)
    kv, asked = KV(*torch.randn(2, 3, 2, 5, 3).double(), k_pos), []

    def project(x):
        asked.append(len(x))
        return x @ to_q, x @ to_k

    some = made.scores(q, kv, q_pos, None, project)
    monkeypatch.setattr(disentangled, "find_max_distance", lambda *given: None)
    every = made.scores(q, kv, q_pos, None, project)
    there = torch.ones(1, dtype=torch.bool)
    if k_pos is not None:
        there = (q_pos >= 0)[:, None, :, None] & (k_pos >= 0).repeat_interleave(4 // k_pos.size(1), 1)[
            :, :, None
        ]
    gap = (some - every).masked_fill(~there, 0)
    assert float(gap.detach().abs().max()) < 1e-12
    assert asked[0] < asked[1] == 80


@pytest.mark.parametrize("more", [{}, {"qk_norm": True}, {"qk_norm": "all_heads", "tie": "qkv"}], ids=str)
@torch.no_grad()
def test_vectors_are_projected_as_tokens_are(more):
    heads = 4 if "tie" in more else 2
    a = Attention(
        AttentionShape.from_sizes(12, 4, heads),
        scheme("disentangled", span=2, max_distance=None).float(),
        **more,
    )
    for p in a.parameters():
        p.normal_()
    x = torch.randn(7, 12)
    q = a.q_norm(split_heads(a.q_proj(x[None]), 3))
    assert all(map(torch.equal, a.project_qk(x), (q[0], a.project_kv(x[None], None).k[0])))
    assert Attention(
        AttentionShape.from_sizes(12, 4, 2), DisentangledPosition(AttentionShape.from_sizes(12, 4))
    ).scale == pytest.approx((3 * 3) ** -0.5)
    assert Attention(
        AttentionShape.from_sizes(12, 4, 2),
        DisentangledPosition(AttentionShape.from_sizes(12, 4), terms="c2p"),
    ).scale == pytest.approx((2 * 3) ** -0.5)
    assert (
        Attention(
            AttentionShape.from_sizes(12, 4, 2),
            DisentangledPosition(AttentionShape.from_sizes(12, 4)),
            scale=0.3,
        ).scale
        == 0.3
    )


@pytest.mark.parametrize("place", PLACES)
def test_what_is_learned_gets_the_gradient_of_finite_differences(place):
    made, to_q, to_k = scheme("disentangled", span=3, max_distance=5), projection(4), projection(2)
    q_pos, k_pos = PLACES[place]
    q = torch.randn(3, 4, 5 if q_pos is None else q_pos.size(1), 3, dtype=torch.double, requires_grad=True)
    k = torch.randn(3, 2, 5, 3, dtype=torch.double, requires_grad=True)

    def scores(q, k, *tables):
        return made.scores(q, KV(k, k, k_pos), q_pos, None, lambda x: (x @ to_q, x @ to_k))

    assert torch.autograd.gradcheck(scores, (q, k, *made.parameters()))


def test_all_layers_of_a_stack_have_one_table():
    sizes = {"vocab_size": 20, "kind": "encoder", "d_model": 16, "n_heads": 4, "n_layers": 3}
    plain, with_table = (
        sum(p.numel() for p in build(ModelConfig(**sizes, position=position)).parameters())
        for position in ("none", {"name": "disentangled", "span": 6, "max_distance": 12})
    )
    assert with_table == plain + 12 * 16 + 2 * 16  # and the norm


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"span": 1}, "span of disentangled is 1; it is the number of vectors for both sides, at least 2"),
        (
            {"span": 8, "max_distance": 5},
            "max_distance of disentangled is 5; .* up to 4, so it must be at least 6",
        ),
        ({"dropout": 1.0}, "dropout must be a probability from 0 to below 1"),
    ],
)
def test_options_that_make_no_sense_are_user_errors(options, said):
    with pytest.raises(UserError, match=said):
        DisentangledPosition(AttentionShape.from_sizes(8, 2), **options)
