import math

import pytest
import torch

from polyhead.introspect import projection
from polyhead.introspect.projection import affinities, pca, tsne, tsne_divergence


@pytest.fixture
def mixture():
    g = torch.Generator().manual_seed(0)
    centres = 6 * torch.randn(3, 20, generator=g)
    points = torch.cat([centre + torch.randn(40, 20, generator=g) for centre in centres])
    order = torch.randperm(120, generator=g)
    return points[order], torch.arange(120)[order] // 40


def test_components_and_neighbours_are_those_of_definitions(mixture):
    x, _ = mixture
    points, share = pca(x, 3)
    values, vectors = torch.linalg.eigh(torch.cov(x.double().T))
    assert torch.allclose(share, values.flip(0)[:3] / values.sum())
    for i in range(3):
        axis = vectors[:, -1 - i]
        axis = axis * axis[axis.abs().argmax()].sign()
        assert torch.allclose(points[:, i], (x.double() - x.double().mean(0)) @ axis, atol=1e-9)
    assert torch.allclose(pca(x + 5, 3)[0], points, atol=1e-4)
    x, _ = mixture
    result = projection.nearest_neighbours(x, 4)
    for i in (0, 50, 119):
        cosines = torch.nn.functional.cosine_similarity(x[i : i + 1].double(), x.double())
        order = [j for j in cosines.argsort(descending=True).tolist() if j != i]
        assert result[i].tolist() == order[:4]


def test_affinities_have_the_requested_perplexity(mixture):
    """Each row is a Gaussian, whose width differs from that of others by up to ten thousand times."""
    x = mixture[0] * torch.logspace(-2, 2, 120)[:, None]
    p = affinities(x, 12.0)
    for i in range(0, 120, 8):
        bits = -sum(v * math.log2(v) for v in p[i].tolist() if v > 0)
        assert 2**bits == pytest.approx(12, abs=1e-6)
        distances = (x[i].double() - x.double()).square().sum(1)
        first, *other_points = [j for j in range(120) if j != i and p[i, j] > 1e-12]
        widths = [-math.log(p[i, j] / p[i, first]) / (distances[j] - distances[first]) for j in other_points]
        assert widths == pytest.approx([float(widths[0])] * len(widths), rel=1e-5)
    assert torch.equal(p.diagonal(), torch.zeros(120).double())
    assert torch.allclose(p.sum(1), torch.ones(120).double())


def plain_divergence(p, y):
    """KL(P || Q) with Student-t neighbourhoods, loop by loop."""
    pairs = [(i, j) for i in range(len(y)) for j in range(len(y)) if i != j]
    q = {(i, j): 1 / (1 + (y[i] - y[j]).square().sum()) for i, j in pairs}
    total = sum(q.values())
    return sum(p[pair] * torch.log(p[pair] * total / q[pair]) for pair in pairs)


def test_gradient_is_that_of_the_divergence():
    torch.manual_seed(0)
    y = torch.randn(7, 2, dtype=torch.double, requires_grad=True)
    p = torch.rand(7, 7, dtype=torch.double).fill_diagonal_(0)
    p = (p + p.T) / (p + p.T).sum()
    expected = plain_divergence(p, y)
    expected.backward()
    assert tsne_divergence(p, y.detach()) == pytest.approx(expected.item())
    assert torch.allclose(projection.tsne_gradient(p, y.detach()), y.grad)


def test_tsne_separates_groups_and_is_deterministic(mixture):
    x, groups = mixture
    result = tsne(x, perplexity=15, steps=300)
    assert result.points.shape == (120, 2)
    distances = torch.cdist(result.points, result.points).fill_diagonal_(math.inf)
    neighbours = distances.topk(10, largest=False).indices
    assert bool((groups[neighbours] == groups[:, None]).all())
    assert result.kl[-1] == min(result.kl) < 0.35 * result.kl[0]
    p = affinities(x, 15)
    assert result.kl[-1] == pytest.approx(tsne_divergence((p + p.T) / 240, result.points))
    assert torch.equal(tsne(x, perplexity=15, steps=300).points, result.points)


@pytest.mark.parametrize("n", [2, 5])
def test_few_or_equal_points_are_projected(n):
    assert bool(tsne(torch.randn(n, 1), steps=60).points.isfinite().all())
    assert bool(tsne(torch.ones(n, 3), steps=60).points.isfinite().all())
    points, share = pca(torch.ones(n, 3))
    assert torch.equal(points.abs(), torch.zeros(n, 2).double())
    assert share.tolist() == [0, 0]
