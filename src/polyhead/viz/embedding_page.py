"""The page of ``polyhead visualize``: plots of the positions and of the token embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.core.errors import NotFiniteError
from polyhead.core.i18n import tr
from polyhead.introspect.attention_map import display_token
from polyhead.introspect.projection import nearest_neighbours, pca, tsne
from polyhead.models import Model
from polyhead.nn.embedding import Embedding
from polyhead.viz.html_page import PageSection, json_script, read_asset, render_html
from polyhead.viz.plot import Curve, format_number, line_figure
from polyhead.viz.plots import Matrix, matrix_figure, scatter_svg, to_rows
from polyhead.viz.position_plots import position_matrices
from polyhead.viz.training_report import LARGE_SIZES

PALETTE = (0, 1, 4)  # colour classes of the page: teal, orange, violet
_N_NEIGHBOURS = 6  # nearest neighbours that are listed
_PLOT_SIZES = {"wide": (860, 600), "narrow": (360, 420)}  # pixels; the style sheet shows the one that fits
_MAX_CURVES = 12  # maximum number of heads with a curve each: the number of colours


class TokenPoints(NamedTuple):
    """The plotted tokens, the most frequent first: embedding vectors and metadata."""

    vectors: Tensor  # (N, C)
    names: Sequence[str]
    counts: Sequence[int] | None  # in the training text; None if it could not be read
    kinds: Sequence[int]  # index into ``PALETTE`` and into ``groups``
    groups: Sequence[str]  # e.g. languages; a single one is not shown


def draw_page(
    title: str, lead: str, model: Model, tokens: TokenPoints, n_positions: int, perplexity: float = 30.0
) -> str:
    """The complete HTML document."""
    sections = [*position_sections(model, n_positions), token_section(tokens, perplexity)]
    return render_html(title, lead, sections, style=read_asset("draw.css"), script=read_asset("draw.js"))


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
    if len(parts) == 2 and same_matrices(*matrices):
        headings, parts, matrices = [tr("Positions")], parts[:1], matrices[:1]
    return [
        position_section(heading, f"{c.position.name}: {tr(first_paragraph(part))}", grids)
        for heading, part, grids in zip(headings, parts, matrices, strict=True)
    ]


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


def token_section(tokens: TokenPoints, perplexity: float) -> PageSection:
    """Both projections with their loss of information, and the data of the readout."""
    x = tokens.vectors.double()
    if not bool(x.isfinite().all()):
        raise NotFiniteError
    points, share = pca(x)
    embedding = tsne(torch.nn.functional.normalize(x, dim=1), perplexity)
    shares = tr(" and ").join(f"{100 * float(s):.1f} %" for s in share)
    of_components = tr(
        "The two axes have {shares} of the variance; the remaining distances are not visible.",
        shares=shares,
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
        else "The first {n} tokens of the vocabulary (the training text could not be read, so "
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


def same_matrices(a: Sequence[Matrix], b: Sequence[Matrix]) -> bool:
    """Whether encoder and decoder have equal matrices."""
    same = [
        x.title == y.title and x.values.shape == y.values.shape and bool((x.values == y.values).all())
        for x, y in zip(a, b, strict=False)
    ]
    return len(a) == len(b) and all(same)


def first_paragraph(part: object) -> str:
    """The first paragraph of a part's docstring, in one line."""
    text = inspect.cleandoc(type(part).__doc__ or "").split("\n\n")[0]
    return " ".join(text.replace("``", "").split())
