"""The page of ``polyhead visualize``: the effect of positions as matrices, and the token embeddings.

The effect of any position scheme is measured by calling the part.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import NotFiniteError
from polyhead.core.i18n import tr
from polyhead.evaluate.embed import cosine_similarity
from polyhead.introspect.attention_map import display_token
from polyhead.introspect.projection import TsneResult, nearest_neighbours, pca, tsne
from polyhead.models import Model
from polyhead.nn.embedding import Embedding
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.viz.html_page import PageSection, Text, in_both_languages, json_script, read_asset, render_html
from polyhead.viz.plot import Curve, format_number, line_figure
from polyhead.viz.plots import Matrix, matrix_figure, scatter_svg, to_rows
from polyhead.viz.run_page import LARGE_SIZES

_MAX_HEADS = 8  # maximum number of heads with an image each


@torch.no_grad()
def position_matrices(position: Position, shape: AttentionShape, n: int) -> list[Matrix]:
    """Matrices of the scheme and of the similarity of positions 0 to n - 1; empty if it has no effect."""
    if position.kind == "embeddings":
        vectors = measure_embedding(position, shape, n)
        return [
            Matrix(tr("What each position adds to the embedding"), vectors, column="feature"),
            Matrix(tr("Similarity of two positions (cosine)"), pairwise_cosine(vectors)),
        ]
    if position.kind == "heads":
        # (n, D, D): row j is the image of feature j
        unit_vectors = torch.eye(shape.head_dim)[None, :, None].expand(1, -1, n, -1)
        return list(rotary_matrices(position.rotate(unit_vectors, None)[0].transpose(0, 1)))
    if position.kind == "scores":
        if position.n_products > 1:  # vectors of model width, plotted as one head
            shape = shape._replace(n_heads=1, n_kv_heads=1, head_dim=shape.d_model)
        bias, ones = measure_bias(position, shape, n), torch.ones(1, shape.n_heads, n, shape.head_dim)
        if torch.equal(bias, measure_bias(position, shape, n, ones)):
            return list(bias_matrices(bias, shape.causal))
        return list(distance_matrices(position, shape, n))  # it depends on the query
    return []


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
    # queries (1, H, n, D) in which one feature is one and all others are zero
    queries = (row.expand(1, shape.n_heads, n, -1) for row in torch.eye(shape.head_dim))
    biases = [measure_bias(position, shape, n, q)[0, middle] for q in queries]
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


def pairwise_cosine(vectors: Tensor) -> Tensor:
    """Cosine similarity of all pairs of rows: (n, C) -> (n, n)."""
    return cosine_similarity(vectors.double(), vectors.double())


PALETTE = (0, 1, 4)  # colour classes of the page: teal, orange, violet
_N_NEIGHBOURS = 6  # nearest neighbours that are listed
_PLOT_SIZES = {"wide": (860, 600), "narrow": (360, 420)}  # pixels; the style sheet shows the one that fits
_MAX_CURVES = 12  # maximum number of heads with a curve each: the number of colours


class TokenPoints(NamedTuple):
    """The plotted tokens, the most frequent first: embedding vectors and metadata."""

    vectors: Tensor  # (N, C)
    names: Sequence[str]
    counts: Sequence[int] | None  # in the examples of the run; None without them
    kinds: Sequence[int]  # index into ``PALETTE`` and into ``groups``
    groups: Sequence[str]  # e.g. languages; a single one is not shown


def draw_page(
    title: Text,
    lead: Text,
    model: Model,
    tokens: TokenPoints,
    n_positions: int,
    perplexity: float = 30.0,
    links: Mapping[str, Any] | None = None,
) -> str:
    """The complete HTML document."""
    x = tokens.vectors.double()
    if not bool(x.isfinite().all()):
        raise NotFiniteError
    embedding = tsne(torch.nn.functional.normalize(x, dim=1), perplexity)

    @in_both_languages
    def render() -> str:
        sections = [*position_sections(model, n_positions), token_section(tokens, embedding)]
        style, script = read_asset("draw.css"), read_asset("draw.js")
        return render_html(title, lead, sections, style=style, script=script, links=links)

    return render()


def find_embeddings(model: nn.Module) -> list[Embedding]:
    """The embedding layers: two in an encoder-decoder, the encoder's first, else one."""
    return [part for part in model.modules() if isinstance(part, Embedding)]


def position_sections(model: Model, n: int) -> list[PageSection]:
    """Sections for the positions of the encoder and, if different, of the decoder."""
    c, tables = model.config, find_embeddings(model)
    parts = [table.position for table in tables]
    headings = (
        [tr("Positions of the encoder"), tr("Positions of the decoder")]
        if len(parts) == 2
        else [tr("Positions")]
    )
    causal = (False, True) if len(parts) == 2 else (c.kind == "decoder",)
    shapes = [
        c.attention_shape(hidden)._replace(d_model=table.token.embedding_dim)
        for table, hidden in zip(tables, causal, strict=True)
    ]
    matrices = [position_matrices(part, shape, n) for part, shape in zip(parts, shapes, strict=True)]
    if len(parts) == 2 and len(matrices[0]) == len(matrices[1]) and all(map(_is_same, *matrices)):
        headings, parts, matrices = [tr("Positions")], parts[:1], matrices[:1]
    # the first paragraphs of the docstrings, in one line
    docstrings = (inspect.cleandoc(type(part).__doc__ or "") for part in parts)
    abouts = [" ".join(text.split("\n\n")[0].replace("``", "").split()) for text in docstrings]
    return [
        position_section(heading, f"{c.position.name}: {tr(about)}", grids)
        for heading, about, grids in zip(headings, abouts, matrices, strict=True)
    ]


def _is_same(a: Matrix, b: Matrix) -> bool:
    return a.title == b.title and torch.equal(a.values, b.values)


def position_section(heading: str, caption: str, matrices: Sequence[Matrix]) -> PageSection:
    """A section for one position scheme.

    A table is next to the similarity of its rows; a bias has full width, also as curves, with small maps of
    the heads.
    """
    if not matrices:
        message = tr("Nothing to plot: no part of this model depends on positions.")
        return PageSection(heading, caption, f"<p>{escape(message)}</p>")
    first, *rest = matrices
    if first.row != "head":
        width, kind = (600, "pair") if len(rest) == 1 else (300, "small")
        figures = matrix_figure(first, width) + "".join(map(matrix_figure, rest))
        return PageSection(heading, caption, f'<div class="{kind}">{figures}</div>')
    rows = to_rows(first)
    body = matrix_figure(first, 900, max(40, min(26 * len(rows), 400)))
    if len(rows) <= _MAX_CURVES:
        curves = [
            Curve(tr("head {n}", n=h + 1), list(enumerate(row, first.first_column)))
            for h, row in enumerate(rows)
        ]
        body += line_figure(tr("Added to the score, by distance"), curves, tr("distance"), *LARGE_SIZES)
    return PageSection(
        heading, caption, f'{body}<div class="small">{"".join(map(matrix_figure, rest))}</div>'
    )


def token_section(tokens: TokenPoints, embedding: TsneResult) -> PageSection:
    """Both projections with their loss of information, and the data of the readout."""
    x = tokens.vectors.double()
    points, share = pca(x)
    shares = tr(" and ").join(f"{100 * float(s):.1f} %" for s in share)
    of_components = tr(
        "The two axes have {shares} of the variance; the remaining distances are not visible.", shares=shares
    )
    of_tsne = tr(
        "Neighbourhoods of about {n} tokens by cosine; near tokens are similar; distances between groups "
        "mean little. KL divergence {end} (0 is lossless), {start} at the start.",
        n=f"{embedding.perplexity:.0f}",
        end=format_number(embedding.kl[-1]),
        start=format_number(embedding.kl[0]),
    )
    names = [display_token(name.replace("␣", " ")) for name in tokens.names]
    neighbours = nearest_neighbours(x, _N_NEIGHBOURS).tolist()
    data: dict[str, Any] = {"names": list(tokens.names), "near": neighbours, "counts": tokens.counts}
    keys = zip(PALETTE, tokens.groups if len(tokens.groups) > 1 else (), strict=False)
    groups = "".join(f'<span class="key c{c}">{escape(g)}</span>' for c, g in keys)
    body = (
        f'<div class="clouds"><div class="finder"><label>{escape(tr("Find a token"))} <input type="search" '
        'list="tokens" autocomplete="off"></label>'
        f'<span class="groups">{groups}</span></div><p class="readout" '
        f'aria-live="polite">{escape(tr("Point at a dot."))}</p>'
        + cloud_figure(tr("Principal components"), of_components, points, names, tokens)
        + cloud_figure("t-SNE", of_tsne, embedding.points, names, tokens)
        + f"{json_script(data)}</div>"
    )
    lead = tr(
        "The {n} most frequent tokens, from {features} features to two."
        if tokens.counts
        else "The first {n} tokens of the vocabulary (the run keeps no examples, so "
        "frequencies are unknown), from {features} features to two.",
        n=f"{len(names):,}",
        features=f"{x.size(1):,}",
    )
    return PageSection(tr("Embeddings"), lead, body)


def cloud_figure(title: str, caption: str, points: Tensor, names: Sequence[str], tokens: TokenPoints) -> str:
    """One projection as a figure."""
    coordinates, colours = [(float(x), float(y)) for x, y in points], [PALETTE[kind] for kind in tokens.kinds]
    charts = "".join(
        f'<div class="{name}">{scatter_svg(coordinates, names, colours, title, size)}</div>'
        for name, size in _PLOT_SIZES.items()
    )
    return (
        f'<figure class="card"><figcaption><b>{escape(title)}</b> <span '
        f'class="said">{escape(caption)}</span></figcaption>{charts}</figure>'
    )
