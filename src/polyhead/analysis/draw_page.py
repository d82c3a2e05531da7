"""The page of ``polyhead draw``: what a model's positions do, and where its tokens lie."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.analysis.charts import Curve, number
from polyhead.analysis.grid import Grid, as_rows, grid_figure
from polyhead.analysis.heat_map import shown
from polyhead.analysis.page import Section, asset, data, page
from polyhead.analysis.positions import position_grids
from polyhead.analysis.projection import neighbours, pca, tsne
from polyhead.analysis.report import plot
from polyhead.analysis.scatter import scatter
from polyhead.core.i18n import tr
from polyhead.models import Model
from polyhead.nn.embedding import Embedding

COLOURS = (0, 1, 4)  # classes of the page: teal, orange, violet
NEAR = 6  # neighbours that are named
CLOUDS = {"wide": (860, 600), "narrow": (360, 420)}  # pixels; the style shows the one that fits
PER_CURVE = 12  # heads that get a curve of their own, as many as there are colours


class Tokens(NamedTuple):
    """The tokens that are drawn, the most frequent first: rows of the embedding, and what is known of them."""

    vectors: Tensor  # (N, C)
    names: Sequence[str]
    counts: Sequence[int] | None  # in the training text; None where it could not be read
    kinds: Sequence[int]  # a colour of COLOURS, and of its name in groups
    groups: Sequence[str]  # e.g. languages; a single one is not told


def draw_page(
    title: str, lead: str, model: Model, tokens: Tokens, n_positions: int, perplexity: float = 30.0
) -> str:
    """The whole document."""
    sections = [*position_sections(model, n_positions), token_section(tokens, perplexity)]
    return page(title, lead, sections, style=asset("draw.css"), script=asset("draw.js"))


def embeddings(model: nn.Module) -> list[Embedding]:
    """Where tokens become vectors: two in an encoder-decoder, the encoder's first, else one."""
    return [part for part in model.modules() if isinstance(part, Embedding)]


def position_sections(model: Model, n: int) -> list[Section]:
    """The positions of the encoder and, where they are not the same, of the decoder."""
    c, tables = model.config, embeddings(model)
    parts = [table.position for table in tables]
    headings = (
        [tr("Positions of the encoder"), tr("Positions of the decoder")]
        if len(parts) == 2
        else [tr("Positions")]
    )
    causal = (False, True) if len(parts) == 2 else (c.kind == "decoder",)
    shapes = [
        c.shape(hidden)._replace(d_model=table.token.embedding_dim)
        for table, hidden in zip(tables, causal, strict=True)
    ]
    found = [position_grids(part, shape, n) for part, shape in zip(parts, shapes, strict=True)]
    if len(parts) == 2 and alike(*found):
        headings, parts, found = [tr("Positions")], parts[:1], found[:1]
    return [
        position_section(heading, f"{c.position.name}: {tr(first_paragraph(part))}", grids)
        for heading, part, grids in zip(headings, parts, found, strict=True)
    ]


def position_section(heading: str, about: str, grids: Sequence[Grid]) -> Section:
    """A table beside the likeness of its rows; a bias over the whole width, as curves too, and small maps of the heads."""
    if not grids:
        nothing = tr("Nothing to draw: no number of this model depends on the positions.")
        return Section(heading, about, f"<p>{escape(nothing)}</p>")
    first, *rest = grids
    if first.row != "head":
        wide = grid_figure(first, 600 if len(rest) == 1 else 300)
        return Section(
            heading,
            about,
            f'<div class="{"pair" if len(rest) == 1 else "small"}">{wide}{"".join(map(grid_figure, rest))}</div>',
        )
    rows = as_rows(first)
    body = grid_figure(first, 900, max(40, min(26 * len(rows), 400)))
    if len(rows) <= PER_CURVE:
        curves = [
            Curve(tr("head {n}", n=h + 1), list(enumerate(row, first.first_column)))
            for h, row in enumerate(rows)
        ]
        body += plot(
            tr("Added to the score, by distance"), curves, (860, 320), (380, 260), x_label=tr("distance")
        )
    return Section(heading, about, f'{body}<div class="small">{"".join(map(grid_figure, rest))}</div>')


def token_section(tokens: Tokens, perplexity: float) -> Section:
    """Both projections with what was lost in them, and the data of the readout."""
    x = tokens.vectors.double()
    points, share = pca(x)
    found = tsne(torch.nn.functional.normalize(x, dim=1), perplexity)
    shares = tr(" and ").join(f"{100 * float(s):.1f} %" for s in share)
    of_components = tr(
        "The two axes hold {shares} of the variance: the rest of the distances cannot be seen here.",
        shares=shares,
    )
    of_tsne = tr(
        "Neighbourhoods of about {n} tokens, by the cosine; near tokens are alike; the distance between groups means little. "
        "Divergence {end} (0 would be no loss), after {start} at the start.",
        n=f"{found.perplexity:.0f}",
        end=number(found.kl[-1]),
        start=number(found.kl[0]),
    )
    names = [shown(name.replace("␣", " ")) for name in tokens.names]
    near = neighbours(x, NEAR).tolist()
    described: dict[str, Any] = {"names": list(tokens.names), "near": near, "counts": tokens.counts}
    groups = (
        "".join(
            f'<span class="key c{c}">{escape(g)}</span>' for c, g in zip(COLOURS, tokens.groups, strict=False)
        )
        if len(tokens.groups) > 1
        else ""
    )
    body = (
        f'<div class="clouds"><div class="finder"><label>{escape(tr("Find a token"))} <input type="search" list="tokens" autocomplete="off"></label>'
        f'<span class="groups">{groups}</span></div><p class="readout" aria-live="polite">{escape(tr("Point at a dot."))}</p>'
        + cloud(tr("Principal components"), of_components, points, names, tokens)
        + cloud("t-SNE", of_tsne, found.points, names, tokens)
        + f"{data(described)}</div>"
    )
    about = tr(
        "The most frequent tokens: {n} of them, from {features} features to two."
        if tokens.counts
        else "The first tokens of the vocabulary (the training text could not be read, so none were counted): "
        "{n} of them, from {features} features to two.",
        n=f"{len(names):,}",
        features=f"{x.size(1):,}",
    )
    return Section(tr("Embeddings"), about, body)


def cloud(title: str, about: str, points: Tensor, names: Sequence[str], tokens: Tokens) -> str:
    """One projection as a figure."""
    places, colours = [(float(x), float(y)) for x, y in points], [COLOURS[kind] for kind in tokens.kinds]
    drawn = "".join(
        f'<div class="{name}">{scatter(places, names, colours, title, size)}</div>'
        for name, size in CLOUDS.items()
    )
    return f'<figure class="card"><figcaption><b>{escape(title)}</b> <span class="said">{escape(about)}</span></figcaption>{drawn}</figure>'


def alike(a: Sequence[Grid], b: Sequence[Grid]) -> bool:
    """Whether two sides have the same pictures."""
    same = [
        x.title == y.title and x.values.shape == y.values.shape and bool((x.values == y.values).all())
        for x, y in zip(a, b, strict=False)
    ]
    return len(a) == len(b) and all(same)


def first_paragraph(part: object) -> str:
    """What a part says of itself, in one line."""
    said = inspect.cleandoc(type(part).__doc__ or "").split("\n\n")[0]
    return " ".join(said.replace("``", "").split())
