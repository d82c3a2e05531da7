"""Plot the effect of any position scheme as matrices, measured by calling the part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyhead.config.model import AttentionShape
from polyhead.core.i18n import tr
from polyhead.evaluate.embed import cosine_similarity
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.viz.plots import Matrix

_MAX_HEADS = 8  # maximum number of heads with an image each


@torch.no_grad()
def position_matrices(position: Position, shape: AttentionShape, n: int) -> list[Matrix]:
    """Matrices of the scheme and of the similarity of positions 0 to n - 1; empty if it has no effect."""
    if position.kind == "embeddings":
        return list(embedding_matrices(measure_embedding(position, shape, n)))
    if position.kind == "heads":
        return list(rotary_matrices(measure_rotations(position, shape, n)))
    if position.kind == "scores":
        if position.n_products > 1:  # vectors of model width, plotted as one head
            shape = shape._replace(n_heads=1, n_kv_heads=1, head_dim=shape.d_model)
        if depends_on_query(position, shape, n):
            return list(distance_matrices(position, shape, n))
        return list(bias_matrices(measure_bias(position, shape, n), shape.causal))
    return []


def embedding_matrices(vectors: Tensor) -> Iterator[Matrix]:
    """Plot the vector that is added to the embedding of each position: (n, C)."""
    yield Matrix(tr("What each position adds to the embedding"), vectors, column="feature")
    yield Matrix(tr("Similarity of two positions (cosine)"), pairwise_cosine(vectors))


def rotary_matrices(rotations: Tensor) -> Iterator[Matrix]:
    """Plot the rotation of a head's features at each position.

    (n, D, D): matrices of which each rotates pairs of features.
    """
    n, D, _ = rotations.shape
    cos = rotations.diagonal(dim1=1, dim2=2)
    off_diagonal = rotations - torch.diag_embed(cos)
    partner = off_diagonal.abs().amax(0).argmax(1)
    first = [j for j in range(D) if off_diagonal[:, j].abs().sum() > 0 and j < int(partner[j])]
    sin = (
        torch.stack([off_diagonal[:, j, int(partner[j])] for j in first], 1)
        if first
        else off_diagonal.new_zeros(n, 0)
    )
    yield Matrix(tr("Cosine of the angle"), cos[:, first], column="pair of features")
    yield Matrix(tr("Sine of the angle"), sin, column="pair of features")
    likeness = torch.einsum("iab,jab->ij", rotations, rotations) / D
    yield Matrix(tr("Dot product of a query with an equal key"), likeness, "position of the query",
        "position of the key",
               caption=tr("Mean over all unit vectors."))  # fmt: skip


def bias_matrices(scores: Tensor, causal: bool) -> Iterator[Matrix]:
    """Plot the bias on the scores (H, n, n) by distance, and the attention weights for equal keys."""
    H, n, _ = scores.shape
    first = 0 if causal else 1 - n
    rows = torch.stack([torch.stack([head.diagonal(-d).mean() for d in range(first, n)]) for head in scores])
    title = tr("What each head adds to the score, by distance to the key")
    yield Matrix(title, rows, "head", "distance", 1, first)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    for h in range(min(H, _MAX_HEADS)):
        yield Matrix(tr("Head {n} where all keys are equal", n=h + 1), weights[h], "position of the query",
            "position of the key",
                   caption=tr("Fractions of the largest weight of the row."))  # fmt: skip


def distance_matrices(position: Position, shape: AttentionShape, n: int) -> Iterator[Matrix]:
    """Plot the vectors per distance of a bias that is their product with query or key (Shaw et al., 2018)."""
    middle = n - 1 if shape.causal else n // 2  # a causal query attends to nothing ahead of it
    biases = [
        measure_bias(position, shape, n, unit_queries(shape, n, feature))[0, middle]
        for feature in range(shape.head_dim)
    ]
    keys, first = torch.stack(biases, 1).flip(0), middle - n + 1
    title = tr("Vector for each distance to the key, multiplied with the query")
    yield Matrix(title, keys.T, "feature", "distance", 0, first)
    yield Matrix(
        tr("Similarity of two distances (cosine)"),
        pairwise_cosine(keys),
        "distance",
        "distance",
        first,
        first,
    )


def measure_embedding(position: Position, shape: AttentionShape, n: int) -> Tensor:
    """(n, C): the vector added to a zero embedding at each position."""
    return position.embed(torch.zeros(1, n, shape.d_model), None)[0]


def measure_rotations(position: Position, shape: AttentionShape, n: int) -> Tensor:
    """(n, D, D): row j is the image of feature j."""
    unit_vectors = torch.eye(shape.head_dim)[None, :, None].expand(1, -1, n, -1)
    return position.rotate(unit_vectors, None)[0].transpose(0, 1)


def measure_bias(position: Position, shape: AttentionShape, n: int, q: Tensor | None = None) -> Tensor:
    """(H, n, n): the bias on the scores of n queries, zero by default, and n equal keys."""
    q = torch.zeros(1, shape.n_heads, n, shape.head_dim) if q is None else q
    k, v = q[:, : shape.n_kv_heads], torch.zeros(1, shape.n_kv_heads, n, shape.v_head_dim)
    bias = position.scores(
        q, KV(k, v), None, None, lambda x: (identity_heads(x, shape), identity_heads(x, shape))
    )
    if bias is None:
        return torch.zeros(shape.n_heads, n, n)
    return bias[0].expand(shape.n_heads, n, n)


def identity_heads(vectors: Tensor, shape: AttentionShape) -> Tensor:
    """Vectors (R, C) as queries or keys (1, R, D) of attention with identity projections."""
    return (vectors @ torch.eye(vectors.size(1), shape.head_dim))[None]


def depends_on_query(position: Position, shape: AttentionShape, n: int) -> bool:
    """Whether the bias depends on the query, not only on the positions."""
    return not torch.equal(
        measure_bias(position, shape, n),
        measure_bias(position, shape, n, torch.ones(1, shape.n_heads, n, shape.head_dim)),
    )


def unit_queries(shape: AttentionShape, n: int, feature: int) -> Tensor:
    """Queries (1, H, n, D) in which one feature is one and all others are zero."""
    q = torch.zeros(1, shape.n_heads, n, shape.head_dim)
    q[..., feature] = 1
    return q


def pairwise_cosine(vectors: Tensor) -> Tensor:
    """Cosine similarity of all pairs of rows: (n, C) -> (n, n)."""
    return cosine_similarity(vectors.double(), vectors.double())
