"""Points of many features in the plane: principal components, and t-SNE.

Both are deterministic: the same points give the same picture.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.analysis.vectors import cosine

LOOK = 25  # steps between two measurements of the divergence
HALVINGS = 64  # of the interval that holds a bandwidth: as many as double precision has use for


def pca(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
    """Coordinates on the k axes of greatest variance, (N, C) -> (N, k), and the share of the variance on each (k,).

    The sign of an axis is arbitrary; here its largest entry is positive (Pearson, 1901; Jolliffe, 2002).
    """
    x = x.double() - x.double().mean(0)
    u, s, axes = torch.linalg.svd(x, full_matrices=False)
    k = min(k, len(s))
    sign = axes[:k].gather(1, axes[:k].abs().argmax(1, keepdim=True))[:, 0].sign()
    return u[:, :k] * s[:k] * sign, s[:k] ** 2 / (s**2).sum().clamp(min=1e-300)


class Embedded(NamedTuple):
    """What t-SNE found."""

    points: Tensor  # (N, 2)
    perplexity: float  # that could be had with so many points
    kl: list[float]  # the Kullback-Leibler divergence at the start, after every LOOK steps, and at the end


def tsne(x: Tensor, perplexity: float = 30.0, steps: int = 750) -> Embedded:
    """Put points into the plane so that near ones stay near, (N, C) -> (N, 2) (van der Maaten & Hinton, 2008).

    Neighbourhoods in the space are Gaussian with about ``perplexity`` neighbours each, in the plane Student-t; the
    divergence between the two is descended with momentum and gains. It starts from the principal components, and its
    rate follows the number of points (Kobak & Berens, 2019; Belkina et al., 2019).
    """
    n = len(x)
    perplexity = min(perplexity, max(1.0, (n - 1) / 3))
    conditional = affinities(x, perplexity)
    p = (conditional + conditional.T) / (2 * n)
    y, exaggeration, calm = start(x), 12.0, steps // 3
    rate = max(n / exaggeration / 4, 50.0)
    speed, gains, kl = torch.zeros_like(y), torch.ones_like(y), [divergence(p, y)]
    for step in range(steps):
        early = step < calm
        slope = gradient(p * exaggeration if early else p, y)
        gains = torch.where(slope * speed > 0, gains * 0.8, gains + 0.2).clamp(min=0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * slope
        y = y + speed
        if (step + 1) % LOOK == 0 or step + 1 == steps:
            kl.append(divergence(p, y))
    return Embedded(y - y.mean(0), perplexity, kl)


def start(x: Tensor) -> Tensor:
    """The two principal components, tiny, so that every point can still go anywhere."""
    y, _ = pca(x)
    y = torch.cat([y, y.new_zeros(len(y), 2 - y.size(1))], 1)
    return y / y[:, :1].std().clamp(min=1e-12) * 1e-4


def affinities(x: Tensor, perplexity: float) -> Tensor:
    """p(j | i), (N, C) -> (N, N): Gaussians whose widths give every row that perplexity, 2 to its entropy in bits.

    The widths are found by halving an interval of 1 / (2 sigma^2), for all rows at once.
    """
    distance = torch.cdist(x.double(), x.double()).square()
    distance.fill_diagonal_(math.inf)
    # the nearest keeps its weight however narrow the Gaussian
    distance = distance - distance.amin(1, keepdim=True)
    scale = distance[distance.isfinite()].mean().item() or 1.0
    low, high = (torch.full((len(x), 1), bound / scale).double() for bound in (1e-12, 1e12))
    for _ in range(HALVINGS):
        middle = (low * high).sqrt()  # the geometric mean, for widths differ by powers of ten
        wide = entropy((-distance * middle).softmax(1)) > math.log(perplexity)
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return (-distance * high).softmax(1)


def entropy(p: Tensor) -> Tensor:
    """Of every row, in nats: (N, N) -> (N, 1)."""
    return -torch.xlogy(p, p).sum(1, keepdim=True)


def near(y: Tensor) -> Tensor:
    """1 / (1 + distance^2), and zero from a point to itself: (N, 2) -> (N, N). Divided by its sum it is q."""
    length = y.square().sum(1, keepdim=True)
    squared = torch.addmm(length + length.T, y, y.T, alpha=-2).clamp_(min=0)
    return squared.add_(1).reciprocal_().fill_diagonal_(0)


def gradient(p: Tensor, y: Tensor) -> Tensor:
    """4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2), (N, N), (N, 2) -> (N, 2) (ibid., eq. 5)."""
    close = near(y)
    pull = close.mul(p - close / close.sum())
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def divergence(p: Tensor, y: Tensor) -> float:
    """KL(P || Q): how badly the points of the plane tell the neighbourhoods (ibid., eq. 2)."""
    close = near(y)
    return float((torch.xlogy(p, p) - torch.xlogy(p, (close / close.sum()).clamp(min=1e-300))).sum())


def neighbours(x: Tensor, k: int) -> Tensor:
    """The k nearest others of every point by the cosine, nearest first: (N, C) -> (N, k) ids."""
    near = cosine(x.double(), x.double()).fill_diagonal_(-math.inf)
    return near.topk(min(k, len(x) - 1), dim=1).indices
