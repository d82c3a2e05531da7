"""Interactive HTML page of attention maps: every layer and head of every example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.introspect.attention_map import (
    AttentionMap,
    display_token,
    displayed_tokens,
    layer_numbers,
    nested_weights,
    select_weights,
)
from polyhead.tokenizers.display import END_MARK
from polyhead.viz.html_page import PageSection, Text, in_both_languages, json_script, render_html, save_page
from polyhead.viz.plot import clip_label, svg, tag, text

CROSS_ATTENTION_HELP = (
    "Each row is a step of the decoder: the token that goes in → the token that it writes. The stronger the "
    "colour of a cell, the higher its attention weight for the source token above it. Every row sums to "
    "one. Choose an example, a layer and a head; point at a cell, or move with the arrow keys."
)
ATTENTION_HELP = (
    "Each row is a query token, in a decoder with the token that it writes (in → written). The stronger the "
    "colour of a cell, the higher its attention weight for the token above it. Every row sums to one. "
    "Choose a kind of attention, a layer and a head; point at a cell, or move with the arrow keys."
)
CELL = 26  # pixels of a cell and its margin


def write_attention_page(
    path: Path | str,
    maps: AttentionMap | Sequence[AttentionMap],
    title: str = "",
    lead: Text = "",
    links: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained page with one or several attention maps."""
    return save_page(path, _render_page(maps, title, lead, links))


@in_both_languages
def _render_page(
    maps: AttentionMap | Sequence[AttentionMap], title: str, lead: Text, links: Mapping[str, Any] | None
) -> str:
    return render_html(title or tr("Attention"), lead, [attention_section(maps)], links=links)


def attention_section(maps: AttentionMap | Sequence[AttentionMap]) -> PageSection:
    """The interactive maps as a section. Without JavaScript the first map is shown as a static picture."""
    map_list = [maps] if isinstance(maps, AttentionMap) else list(maps)
    if not map_list:
        raise UserError("no attention map: expected at least one")
    kinds = list(dict.fromkeys(attention.kind for attention in map_list))
    heading = tr(kinds[0]).capitalize() if len(kinds) == 1 else tr("Attention")
    data = json_script([map_to_json(attention) for attention in map_list])
    body = f'<div class="attention">{data}{heat_map_svg(map_list[0])}</div>'
    return PageSection(
        heading, tr(CROSS_ATTENTION_HELP if kinds == ["cross-attention"] else ATTENTION_HELP), body
    )


def map_to_json(attention: AttentionMap) -> dict[str, Any]:
    """A map as JSON for the script, with weights as integers in thousandths, enough for display."""
    weights = nested_weights(attention)
    return {
        "kind": attention.kind,
        "title": attention.title or join_tokens(attention.source_tokens),
        "source": [display_token(token) for token in attention.source_tokens],
        "target": [display_token(token) for token in attention.target_tokens],
        "rows": displayed_tokens(attention)[1],
        "weights": [
            [[[round(1000 * w) for w in row] for row in head] for head in layer] for layer in weights
        ],
        "layers": layer_numbers(attention, len(weights)),
    }


def join_tokens(tokens: Sequence[str]) -> str:
    """Join tokens to a text: with their own spaces if they have any, without spaces for Chinese."""
    words = [token for token in tokens if token != "</s>" and not token.startswith(END_MARK)]
    has_spaces = any(token.startswith(" ") for token in words) or any(
        cell_len(token) > len(token) for token in words
    )
    return ("" if has_spaces else " ").join(words).strip()


def heat_map_svg(attention: AttentionMap, layer: int | None = -1, head: int | None = None) -> str:
    """One map as an SVG element: the larger a weight, the stronger the colour of its cell."""
    matrix = select_weights(attention, layer, head)
    source, target = ([clip_label(token) for token in tokens] for tokens in displayed_tokens(attention))
    left, top = 12 + 7.4 * max(map(cell_len, target)), 24 + 6.6 * max(map(cell_len, source))
    right = 14 + 5.4 * cell_len(source[-1])
    width, height = round(left + CELL * len(source) + right), round(top + CELL * len(target) + 4)
    parts, side = [], CELL - 2
    for s, token in enumerate(source):
        turned = f"translate({left + CELL * (s + 0.5):.1f} {top - 8:.1f}) rotate(-50)"
        parts.append(tag("text", "token", escape(token), transform=turned))
    for t, (token, row) in enumerate(zip(target, matrix, strict=True)):
        y = top + CELL * t
        parts.append(text("token end", left - 8, y + CELL / 2 + 5, token))
        for s, weight in enumerate(row):
            box: dict[str, Any] = {"x": left + CELL * s, "y": y, "width": side, "height": side, "rx": 3}
            # the power 0.7 keeps small weights visible, as in the script of the page
            opacity = f"{max(weight, 0.0) ** 0.7:.3f}"
            parts += [tag("rect", "under", **box), tag("rect", "cell", fill_opacity=opacity, **box)]
    name = tr(
        "{kind}: {rows} target by {columns} source tokens",
        kind=tr(attention.kind),
        rows=len(target),
        columns=len(source),
    )
    return svg("heat", width, height, name, parts, width=f"{width}", height=f"{height}")
