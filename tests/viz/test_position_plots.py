import math

import pytest
import torch
from tests.explain.explain_helpers import sinusoid

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import POSITION
from polyhead.nn.position.base import Position
from polyhead.viz.position_plots import position_matrices

N = 12
SHAPE = AttentionShape.from_sizes(16, 2, max_len=20)


def plot(name, causal=False):
    torch.manual_seed(0)
    shape = SHAPE._replace(causal=causal)
    scheme = POSITION.build(POSITION.check(Choice(name)), shape)
    return scheme, position_matrices(scheme, shape, N)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", POSITION.names())
def test_every_scheme_has_finite_plots(name, causal):
    scheme, matrices = plot(name, causal)
    assert bool(matrices) == (scheme.kind != "nothing")
    for matrix in matrices:
        assert matrix.values.dim() == 2
        assert bool(matrix.values.isfinite().all())
        assert matrix.values.abs().max() > 0


def mean_cosines(rates):
    """The mean over pairs of features of the cosine of the angle between two positions."""
    distance = torch.arange(N)[:, None] - torch.arange(N)
    return (distance[..., None] * torch.tensor(rates)).cos().mean(-1)


def test_tables_of_absolute_positions():
    _, (table, similarity) = plot("sinusoidal")
    torch.testing.assert_close(table.values, sinusoid(N, 16), atol=1e-6, rtol=0, check_dtype=False)
    expected = mean_cosines([10000 ** (-2 * k / 16) for k in range(8)])
    torch.testing.assert_close(similarity.values, expected, atol=1e-6, rtol=0, check_dtype=False)
    scheme, (table, _) = plot("learned")
    assert torch.equal(table.values, scheme.weight[:N])


class InterleavedRope(Position):
    """Rotary positions whose pairs are features 2j and 2j + 1, and of which the last pair is not rotated."""

    def rotate(self, x, pos):
        a, b = x[..., ::2], x[..., 1::2]
        angle = torch.arange(x.size(2))[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.0])
        pairs = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        return torch.stack(pairs, -1).flatten(-2)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
def test_rotary_angles_are_found_in_any_layout(layout):
    if layout == "half-split":
        rates, matrices = [10000 ** (-2 * j / 8) for j in range(4)], plot("rope")[1]
    else:
        rates, matrices = [1.0, 0.1, 0.01], position_matrices(InterleavedRope(SHAPE), SHAPE, N)
    angles = torch.arange(N)[:, None] * torch.tensor(rates)
    products = mean_cosines(rates + [0.0] * (4 - len(rates)))
    for matrix, expected in zip(matrices, (angles.cos(), angles.sin(), products), strict=True):
        torch.testing.assert_close(matrix.values, expected, atol=1e-6, rtol=0, check_dtype=False)


class Slopes(Position):
    """The first head prefers near keys, the second later ones."""

    def bias(self, q, kv, pos, scale=None):
        distance = torch.arange(q.size(2))[:, None] - torch.arange(kv.k.size(2))
        return torch.stack([-0.5 * distance.abs(), -0.25 * distance])[None]


@pytest.mark.parametrize("causal", [False, True])
def test_bias_is_drawn_by_distance_and_as_weights(causal):
    shape = SHAPE._replace(causal=causal)
    by_distance, *heads = position_matrices(Slopes(shape), shape, N)
    d = torch.arange(0 if causal else 1 - N, N)
    assert (by_distance.row, by_distance.first_row, by_distance.first_column) == ("head", 1, d[0])
    torch.testing.assert_close(by_distance.values, torch.stack([-0.5 * d.abs(), -0.25 * d]))
    distance = torch.arange(N)[:, None] - torch.arange(N)
    for matrix, scores in zip(heads, (-0.5 * distance.abs(), -0.25 * distance), strict=True):
        scores = scores.masked_fill((distance < 0) & causal, -math.inf)
        expected = (scores - scores.amax(1, keepdim=True)).exp()  # relative to the largest
        torch.testing.assert_close(matrix.values, expected, atol=1e-6, rtol=0, check_dtype=False)


class DistanceVectors(Position):
    """The product of the query with a vector for the distance."""

    def __init__(self, shape):
        super().__init__(shape)
        self.vectors = {d: torch.randn(shape.head_dim) for d in range(-N, N + 1)}

    def bias(self, q, kv, pos, scale=None):
        T, S = q.size(2), kv.k.size(2)
        table = torch.stack([torch.stack([self.vectors[t - s] for s in range(S)]) for t in range(T)])
        return torch.einsum("bhtd,tsd->bhts", q, table)


@pytest.mark.parametrize("causal", [False, True])
def test_bias_of_query_is_drawn_as_vectors(causal):
    shape = SHAPE._replace(causal=causal)
    scheme = DistanceVectors(shape)
    table, similarity = position_matrices(scheme, shape, N)
    first = 0 if causal else 1 - N // 2
    assert (table.first_column, similarity.first_row, similarity.first_column) == (first,) * 3
    vectors = torch.stack([scheme.vectors[first + i] for i in range(table.values.size(1))])
    torch.testing.assert_close(table.values, vectors.T)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors, dim=-1)
    torch.testing.assert_close(similarity.values, cosines, atol=1e-5, rtol=0, check_dtype=False)
