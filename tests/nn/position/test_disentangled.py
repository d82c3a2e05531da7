import math

import pytest
import torch
from tests.nn.position.relative_distance_helpers import POSITIONS, iter_positions, make_inputs, make_scheme

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.models import build
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import split_heads
from polyhead.nn.position import disentangled
from polyhead.nn.position.disentangled import log_bucket_index, near_index_range

OPTIONS = [
    {"span": 5, "max_distance": 9},
    {"span": 4, "max_distance": 40, "terms": "p2c"},
    {"span": 3, "max_distance": None, "terms": "c2p"},
    {"span": 20, "max_distance": None, "norm_eps": None},
]

WIDE = {"span": 40, "max_distance": 100}


def table_index(distance, span, max_distance):
    """He et al., 2021a, eq. 3, and the log buckets of DeBERTa-v2's code, one integer at a time."""
    middle, size = span // 2, abs(distance)
    if max_distance is not None and size > middle:
        fraction = math.log(size / middle) / math.log((max_distance - 1) / middle)
        bucket = middle + math.ceil(fraction * (middle - 1))
        distance = bucket if distance > 0 else -bucket
    return min(max(distance + span, 0), 2 * span - 1)


def normalize(table, norm):
    if norm is None:
        return table
    centered = table - table.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def draw_projections():
    return (torch.randn(heads, 12, 3, dtype=torch.double) for heads in (4, 2))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_scores_equal_the_equation(options, positions):
    scheme, (q, kv, q_pos, k_pos) = make_scheme("disentangled", **options), make_inputs(positions)
    to_q, to_k = draw_projections()
    output = scheme.scores(q, kv, q_pos, 0.7, lambda x: (x @ to_q, x @ to_k)).expand(3, -1, -1, -1)
    assert output.shape == (3, 4, q.size(2), 5) and output.isfinite().all()
    table, n_pairs = normalize(scheme.weight, scheme.norm), 0
    for (b, h, t, s), i, j in iter_positions(q_pos, k_pos, q.size(2)):
        vector = table[table_index(i - j, scheme.span, scheme.max_distance)]
        c2p, p2c = q[b, h, t] @ (vector @ to_k[h // 2]), kv.k[b, h // 2, s] @ (vector @ to_q[h])
        expected = {"c2p": c2p, "p2c": p2c}.get(scheme.terms, c2p + p2c) * 0.7
        assert float(output[b, h, t, s]) == pytest.approx(float(expected), rel=1e-6, abs=1e-9), (b, h, t, s)
        n_pairs += 1
    assert n_pairs > 20


@pytest.mark.parametrize(
    ("span", "max_distance"), [(256, 512), (256, 130), (32, 128), (5, 40), (2, 3), (3, 300), (48, None)]
)
def test_buckets_equal_those_of_transformers(span, max_distance):
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distance = torch.arange(-600, 601)
    expected = distance
    if max_distance is not None:
        expected = modeling.make_log_bucket_position(distance, span, max_distance).long()
    actual = log_bucket_index(distance, span, max_distance)
    assert torch.equal(actual, expected.clamp(-span, span - 1))
    for distance_limit in (0, 1, span // 2, span // 2 + 1, span, 100, 600):
        index_range = near_index_range(distance_limit, span, max_distance)
        indices = actual[distance.abs() <= distance_limit] + span
        assert index_range.start <= int(indices.min()) <= int(indices.max()) < index_range.stop <= 2 * span


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_unused_vectors_are_not_projected(positions, monkeypatch):
    scheme, (q, kv, q_pos, k_pos) = make_scheme("disentangled", **WIDE), make_inputs(positions)
    (to_q, to_k), sizes = draw_projections(), []

    def project(x):
        sizes.append(len(x))
        return x @ to_q, x @ to_k

    actual = scheme.scores(q, kv, q_pos, None, project).expand(3, -1, -1, -1)
    monkeypatch.setattr(disentangled, "find_max_distance", lambda *inputs: None)
    expected = scheme.scores(q, kv, q_pos, None, project).expand(3, -1, -1, -1)
    for index, _, _ in iter_positions(q_pos, k_pos, q.size(2)):
        assert abs(float(actual[index] - expected[index])) < 1e-12
    assert sizes[0] < sizes[1] == 80


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"qk_norm": "all_heads", "tie": "qkv"}], ids=str)
@torch.no_grad()
def test_vectors_are_projected_like_tokens(options):
    shape = AttentionShape.from_sizes(12, 4, 4 if "tie" in options else 2)
    a, x = Attention(shape, make_scheme("disentangled", span=2).float(), **options), torch.randn(7, 12)
    for p in a.parameters():
        p.normal_()
    q = a.q_norm(split_heads(a.q_proj(x[None]), 3))
    assert all(map(torch.equal, a.project_qk(x), (q[0], a.project_kv(x[None], None).k[0])))


@pytest.mark.parametrize("positions", POSITIONS)
def test_gradients_equal_finite_differences(positions):
    scheme, (q, kv, q_pos, _) = make_scheme("disentangled", span=3, max_distance=5), make_inputs(positions)
    to_q, to_k = draw_projections()

    def scores(q, k, *tables):
        return scheme.scores(q, kv.replace(k=k), q_pos, None, lambda x: (x @ to_q, x @ to_k))

    leaves = q.requires_grad_(), kv.k.requires_grad_(), *scheme.parameters()
    assert torch.autograd.gradcheck(scores, leaves, fast_mode=True)


def test_layers_share_one_table():
    sizes = {"vocab_size": 20, "kind": "encoder", "d_model": 16, "n_heads": 4, "n_layers": 3}
    plain, with_table = (
        sum(p.numel() for p in build(ModelConfig(**sizes, position=position)).parameters())
        for position in ("none", {"name": "disentangled", "span": 6, "max_distance": 12})
    )
    assert with_table == plain + 12 * 16 + 2 * 16  # and its norm
