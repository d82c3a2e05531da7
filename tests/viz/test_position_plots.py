"""What is drawn of a scheme is what the scheme does, by its own equation."""

import math

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import POSITION
from polyhead.nn.position.base import Position
from polyhead.viz.position_plots import position_matrices

N = 12
SHAPE = AttentionShape.from_sizes(16, 2, max_len=20)


def grids(name, causal=False, shape=SHAPE, **options):
    torch.manual_seed(0)
    shape = shape._replace(causal=causal)
    part = POSITION.build(POSITION.check(Choice(name, **options)), shape)
    return part, position_matrices(part, shape, N)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", POSITION.names())
def test_every_scheme_has_pictures_of_numbers_and_one_that_does_nothing_has_none(name, causal):
    part, found = grids(name, causal)
    assert bool(found) == (part.kind != "nothing")
    for grid in found:
        assert grid.values.dim() == 2
        assert bool(grid.values.isfinite().all())
        assert grid.values.abs().max() > 0


def test_the_sinusoidal_table_and_its_cosines_are_those_of_the_formula():
    _, (table, likeness) = grids("sinusoidal")
    wanted = [
        [(math.cos if i % 2 else math.sin)(p / 10000 ** (i // 2 * 2 / 16)) for i in range(16)]
        for p in range(N)
    ]
    torch.testing.assert_close(table.values, torch.tensor(wanted), atol=1e-6, rtol=0)
    for i in range(N):
        for j in range(N):  # the cosine of two positions is the mean of the cosines of their angles
            mean = sum(math.cos((i - j) / 10000 ** (2 * k / 16)) for k in range(8)) / 8
            assert float(likeness.values[i, j]) == pytest.approx(mean, abs=1e-6)


def test_the_learned_table_is_the_parameter():
    part, (table, _) = grids("learned")
    assert torch.equal(table.values, part.weight[:N])


class Neighbours(Position):
    """Rotary positions whose pairs are features 2j and 2j + 1, and of which the last pair stays."""

    def rotate(self, x, pos):
        a, b = x[..., ::2], x[..., 1::2]
        angle = torch.arange(x.size(2))[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.0])
        return torch.stack(
            [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1
        ).flatten(-2)


@pytest.mark.parametrize("layout", ["half-split", "neighbours"])
def test_rotary_angles_are_found_whatever_features_are_paired(layout):
    rates = [10000 ** (-2 * j / 8) for j in range(4)] if layout == "half-split" else [1.0, 0.1, 0.01]
    cos, sin, product = (
        grids("rope")[1] if layout == "half-split" else position_matrices(Neighbours(SHAPE), SHAPE, N)
    )
    angles = torch.arange(N)[:, None] * torch.tensor(rates)
    torch.testing.assert_close(cos.values, angles.cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin.values, angles.sin(), atol=1e-6, rtol=0)
    rates += [0.0] * (4 - len(rates))
    for i in range(N):
        for j in range(N):
            mean = sum(math.cos((i - j) * rate) for rate in rates) / 4
            assert float(product.values[i, j]) == pytest.approx(mean, abs=1e-6)


class Slopes(Position):
    """The first head is fond of what is near, the second of what is ahead."""

    def bias(self, q, kv, pos, scale=None):
        back = torch.arange(q.size(2))[:, None] - torch.arange(kv.k.size(2))
        return torch.stack([-0.5 * back.abs(), -0.25 * back])[None]


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_drawn_by_distance_and_as_what_it_makes_a_head_look_at(causal):
    shape = SHAPE._replace(causal=causal)
    by_distance, *heads = position_matrices(Slopes(shape), shape, N)
    distances = range(0 if causal else 1 - N, N)
    assert (by_distance.row, by_distance.first_row, by_distance.first_column) == ("head", 1, distances[0])
    torch.testing.assert_close(
        by_distance.values, torch.tensor([[-0.5 * abs(d) for d in distances], [-0.25 * d for d in distances]])
    )
    assert len(heads) == 2
    for h, grid in enumerate(heads):
        for t in range(N):
            seen = [s for s in range(N) if s <= t or not causal]
            exps = [math.exp(-0.5 * abs(t - s) if h == 0 else -0.25 * (t - s)) for s in seen]
            for s in range(N):
                wanted = exps[seen.index(s)] / max(exps) if s in seen else 0
                assert float(grid.values[t, s]) == pytest.approx(wanted, abs=1e-6)


class Vectors(Position):
    """The product of the query with a vector for the distance."""

    def __init__(self, shape):
        super().__init__(shape)
        self.of = {d: torch.randn(shape.head_dim) for d in range(-N, N + 1)}

    def bias(self, q, kv, pos, scale=None):
        T, S = q.size(2), kv.k.size(2)
        table = torch.stack([torch.stack([self.of[t - s] for s in range(S)]) for t in range(T)])
        return torch.einsum("bhtd,tsd->bhts", q, table)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_that_reads_the_query_is_drawn_as_its_vectors(causal):
    torch.manual_seed(0)
    shape = SHAPE._replace(causal=causal)
    part = Vectors(shape)
    table, likeness = position_matrices(part, shape, N)
    distances = [table.first_column + i for i in range(N)]
    assert distances[0] == (0 if causal else 1 - N // 2)
    assert (likeness.first_row, likeness.first_column) == (distances[0], distances[0])
    torch.testing.assert_close(table.values, torch.stack([part.of[d] for d in distances], 1))
    for i, a in enumerate(distances):
        for j, b in enumerate(distances):
            wanted = torch.nn.functional.cosine_similarity(part.of[a], part.of[b], dim=0)
            assert float(likeness.values[i, j]) == pytest.approx(float(wanted), abs=1e-5)
