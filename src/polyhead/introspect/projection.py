"""Project vectors into the plane: principal components, and t-SNE.

Both are deterministic: the same vectors give the same points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.evaluate.embed import cosine_similarity

_KL_EVERY = 25  # steps between two measurements of the divergence
_BISECTIONS = 64  # of the interval of a bandwidth: as many as double precision resolves


def pca(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
    """Coordinates on the k axes of greatest variance, (N, C) -> (N, k), and their shares of it (k,).

    The sign of an axis is arbitrary; here its largest entry is positive (Pearson, 1901; Jolliffe, 2002).
    """
    x = x.double() - x.double().mean(0)
    u, s, axes = torch.linalg.svd(x, full_matrices=False)
    k = min(k, len(s))
    sign = axes[:k].gather(1, axes[:k].abs().argmax(1, keepdim=True))[:, 0].sign()
    return u[:, :k] * s[:k] * sign, s[:k] ** 2 / (s**2).sum().clamp(min=1e-300)


class TsneResult(NamedTuple):
    """The result of t-SNE."""

    points: Tensor  # (N, 2)
    perplexity: float  # as used: few points allow only a small one
    kl: list[float]  # Kullback-Leibler divergence at the start, after every _KL_EVERY steps, and at the end


def tsne(x: Tensor, perplexity: float = 30.0, steps: int = 750) -> TsneResult:
    """Place points in the plane, neighbours close, (N, C) -> (N, 2) (van der Maaten & Hinton, 2008).

    Neighbourhoods in the space are Gaussian with about ``perplexity`` neighbours each, in the plane
    Student-t; the divergence between the two is minimised by gradient descent with momentum and gains. It
    starts from the principal components, and its learning rate depends on the number of points (Kobak &
    Berens, 2019; Belkina et al., 2019).
    """
    n = len(x)
    perplexity = min(perplexity, max(1.0, (n - 1) / 3))
    conditional = affinities(x, perplexity)
    p = (conditional + conditional.T) / (2 * n)
    # the two principal components, scaled down so that every point can still move anywhere
    y, _ = pca(x)
    y = torch.cat([y, y.new_zeros(n, 2 - y.size(1))], 1)
    y = y / y[:, :1].std().clamp(min=1e-12) * 1e-4
    exaggeration, calm = 12.0, steps // 3
    rate = max(n / exaggeration / 4, 50.0)
    speed, gains, kl = torch.zeros_like(y), torch.ones_like(y), [tsne_divergence(p, y)]
    for step in range(steps):
        early = step < calm
        slope = tsne_gradient(p * exaggeration if early else p, y)
        gains = torch.where(slope * speed > 0, gains * 0.8, gains + 0.2).clamp(min=0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * slope
        y = y + speed
        if (step + 1) % _KL_EVERY == 0 or step + 1 == steps:
            kl.append(tsne_divergence(p, y))
    return TsneResult(y - y.mean(0), perplexity, kl)


def affinities(x: Tensor, perplexity: float) -> Tensor:
    """p(j | i), (N, C) -> (N, N): Gaussians whose widths give each row this perplexity, 2 ** entropy in bits.

    The widths are found by bisection of 1 / (2 sigma^2), for all rows at once.
    """
    distance = torch.cdist(x.double(), x.double()).square()
    distance.fill_diagonal_(math.inf)
    # the nearest neighbour keeps its weight however narrow the Gaussian is
    distance = distance - distance.amin(1, keepdim=True)
    scale = distance[distance.isfinite()].mean().item() or 1.0
    low, high = (torch.full((len(x), 1), bound / scale).double() for bound in (1e-12, 1e12))
    for _ in range(_BISECTIONS):
        middle = (low * high).sqrt()  # the geometric mean, because widths differ by powers of ten
        p = (-distance * middle).softmax(1)
        wide = -torch.xlogy(p, p).sum(1, keepdim=True) > math.log(perplexity)  # the entropy of each row
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return (-distance * high).softmax(1)


def student_t_kernel(y: Tensor) -> Tensor:
    """1 / (1 + distance^2), and zero from a point to itself: (N, 2) -> (N, N). Divided by its sum it is q."""
    length = y.square().sum(1, keepdim=True)
    squared = torch.addmm(length + length.T, y, y.T, alpha=-2).clamp_(min=0)
    return squared.add_(1).reciprocal_().fill_diagonal_(0)


def tsne_gradient(p: Tensor, y: Tensor) -> Tensor:
    """4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2), (N, N), (N, 2) -> (N, 2) (ibid., eq. 5)."""
    close = student_t_kernel(y)
    pull = close.mul(p - close / close.sum())
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def tsne_divergence(p: Tensor, y: Tensor) -> float:
    """KL(P || Q) of the neighbourhoods in the space and those in the plane (ibid., eq. 2)."""
    close = student_t_kernel(y)
    return float((torch.xlogy(p, p) - torch.xlogy(p, (close / close.sum()).clamp(min=1e-300))).sum())


def nearest_neighbours(x: Tensor, k: int) -> Tensor:
    """The k nearest neighbours of every point by cosine similarity, nearest first: (N, C) -> (N, k) ids."""
    near = cosine_similarity(x.double(), x.double()).fill_diagonal_(-math.inf)
    return near.topk(min(k, len(x) - 1), dim=1).indices
