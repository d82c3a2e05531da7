"""What a position scheme does, as matrices to look at: measured at the part itself, so any scheme can be drawn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyhead.analysis.grid import Grid
from polyhead.analysis.vectors import cosine
from polyhead.config import Shape
from polyhead.core.i18n import tr
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position

HEADS = 8  # of which each gets a picture of its own, at most


@torch.no_grad()
def position_grids(position: Position, shape: Shape, n: int) -> list[Grid]:
    """The scheme as a heat map, and how alike its positions 0 to n - 1 are; empty for a scheme that does nothing."""
    if position.acts_on == "embeddings":
        return list(embedding_grids(table(position, shape, n)))
    if position.acts_on == "heads":
        return list(rotation_grids(rotations(position, shape, n)))
    if position.acts_on == "scores":
        if position.products > 1:  # vectors as wide as the model, drawn as those of one head
            shape = shape._replace(n_heads=1, n_kv_heads=1, head_dim=shape.d_model)
        if reads_content(position, shape, n):
            return list(distance_grids(position, shape, n))
        return list(bias_grids(bias(position, shape, n), shape.causal))
    return []


def embedding_grids(vectors: Tensor) -> Iterator[Grid]:
    """What is added to the embedding of each position: (n, C)."""
    yield Grid(tr("What each position adds to the embedding"), vectors, column="feature")
    yield Grid(tr("Likeness of two positions (cosine)"), cosines(vectors))


def rotation_grids(turns: Tensor) -> Iterator[Grid]:
    """What each position does to a head's features: matrices (n, D, D) of which each turns pairs of features."""
    n, D, _ = turns.shape
    cos = turns.diagonal(dim1=1, dim2=2)
    others = turns - torch.diag_embed(cos)
    partner = others.abs().amax(0).argmax(1)
    first = [j for j in range(D) if others[:, j].abs().sum() > 0 and j < int(partner[j])]
    sin = torch.stack([others[:, j, int(partner[j])] for j in first], 1) if first else others.new_zeros(n, 0)
    yield Grid(tr("Cosine of the angle"), cos[:, first], column="pair of features")
    yield Grid(tr("Sine of the angle"), sin, column="pair of features")
    likeness = torch.einsum("iab,jab->ij", turns, turns) / D
    yield Grid(tr("A query times an equal key"), likeness, "position of the query", "position of the key",
               about=tr("The mean over all vectors of length one."))  # fmt: skip


def bias_grids(scores: Tensor, causal: bool) -> Iterator[Grid]:
    """What is added to the scores, (H, n, n), by the distance, and where a head looks that knows the positions alone."""
    H, n, _ = scores.shape
    first = 0 if causal else 1 - n
    rows = torch.stack([torch.stack([head.diagonal(-d).mean() for d in range(first, n)]) for head in scores])
    title = tr("What each head adds to the score, by the distance back to the key")
    yield Grid(title, rows, "head", "distance", 1, first)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    for h in range(min(H, HEADS)):
        yield Grid(tr("Head {n} where all keys are equal", n=h + 1), weights[h], "position of the query", "position of the key",
                   about=tr("Shares of the row's greatest weight."))  # fmt: skip


def distance_grids(position: Position, shape: Shape, n: int) -> Iterator[Grid]:
    """A bias that is the product of query or key with a vector for the distance: these vectors (Shaw et al., 2018)."""
    middle = n - 1 if shape.causal else n // 2  # a causal query sees nothing ahead of it
    biases = [
        bias(position, shape, n, unit(shape, n, feature))[0, middle] for feature in range(shape.head_dim)
    ]
    keys, first = torch.stack(biases, 1).flip(0), middle - n + 1
    title = tr("Vector for each distance back to the key, which the query is multiplied with")
    yield Grid(title, keys.T, "feature", "distance", 0, first)
    yield Grid(tr("Likeness of two distances (cosine)"), cosines(keys), "distance", "distance", first, first)


def table(position: Position, shape: Shape, n: int) -> Tensor:
    """(n, C): what is added to an embedding that is zero."""
    return position.embed(torch.zeros(1, n, shape.d_model), None)[0]


def rotations(position: Position, shape: Shape, n: int) -> Tensor:
    """(n, D, D): row j is what becomes of feature j."""
    each = torch.eye(shape.head_dim)[None, :, None].expand(1, -1, n, -1)
    return position.rotate(each, None)[0].transpose(0, 1)


def bias(position: Position, shape: Shape, n: int, q: Tensor | None = None) -> Tensor:
    """(H, n, n): what n queries, zero if not given, get added to their scores of n keys that are the same."""
    q = torch.zeros(1, shape.n_heads, n, shape.head_dim) if q is None else q
    k, v = q[:, : shape.n_kv_heads], torch.zeros(1, shape.n_kv_heads, n, shape.v_head_dim)
    found = position.scores(q, KV(k, v), None, None, lambda x: (as_they_are(x, shape), as_they_are(x, shape)))
    if found is None:
        return torch.zeros(shape.n_heads, n, n)
    return found[0].expand(shape.n_heads, n, n)


def as_they_are(vectors: Tensor, shape: Shape) -> Tensor:
    """Vectors (R, C) as the queries or keys (1, R, D) of an attention whose projections change nothing."""
    return (vectors @ torch.eye(vectors.size(1), shape.head_dim))[None]


def reads_content(position: Position, shape: Shape, n: int) -> bool:
    """Whether the bias depends on the query, not on the positions alone."""
    return not torch.equal(
        bias(position, shape, n), bias(position, shape, n, torch.ones(1, shape.n_heads, n, shape.head_dim))
    )


def unit(shape: Shape, n: int, feature: int) -> Tensor:
    """Queries (1, H, n, D) of which one feature is one and all others are zero."""
    q = torch.zeros(1, shape.n_heads, n, shape.head_dim)
    q[..., feature] = 1
    return q


def cosines(vectors: Tensor) -> Tensor:
    """Of every two rows: (n, C) -> (n, n)."""
    return cosine(vectors.double(), vectors.double())
