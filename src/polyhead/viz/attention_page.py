"""Interactive HTML page of attention maps: every layer and head of every example."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.introspect.attention_map import (
    AttentionMap,
    display_token,
    display_width,
    heat_map_svg,
    layer_numbers,
    nested_weights,
)
from polyhead.viz.html_page import PageSection, json_script, render_html, save_page

CROSS_ATTENTION_HELP = (
    "Each row is a word being written; the darker a cell, the more that word looks at the word of the source above it. "
    "Every row sums to one. Choose an example, a layer and a head; point at a cell, or move with the arrow keys."
)
ATTENTION_HELP = (
    "Each row is a token that looks; the stronger the colour of a cell, the more it looks at the token above it. Every row sums to one. "
    "Choose a kind of attention, a layer and a head; point at a cell, or move with the arrow keys."
)
_END_TOKENS = ("</s>", "■")  # end-of-sentence tokens


def write_attention_page(
    path: Path | str, maps: AttentionMap | Sequence[AttentionMap], title: str = "", lead: str = ""
) -> Path:
    """Write one self-contained page with one or several attention maps."""
    return save_page(path, render_html(title or tr("Attention"), lead, [attention_section(maps)]))


def attention_section(maps: AttentionMap | Sequence[AttentionMap]) -> PageSection:
    """The interactive maps as a section. Without JavaScript the first map is shown as a static picture."""
    map_list = [maps] if isinstance(maps, AttentionMap) else list(maps)
    if not map_list:
        raise UserError("no attention map to show: give at least one")
    kinds = list(dict.fromkeys(attention.kind for attention in map_list))
    heading = tr(kinds[0]).capitalize() if len(kinds) == 1 else tr("Attention")
    body = f'<div class="attention">{json_script([map_to_json(attention) for attention in map_list])}{heat_map_svg(map_list[0])}</div>'
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
        "weights": [
            [[[round(1000 * w) for w in row] for row in head] for head in layer] for layer in weights
        ],
        "layers": layer_numbers(attention, len(weights)),
    }


def join_tokens(tokens: Sequence[str]) -> str:
    """Join tokens to a text: with their own spaces if they have any, without spaces for Chinese."""
    words = [token for token in tokens if token not in _END_TOKENS]
    has_spaces = any(token.startswith(" ") for token in words) or any(
        display_width(token) > len(token) for token in words
    )
    return ("" if has_spaces else " ").join(words).strip()
