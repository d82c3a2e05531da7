"""Attention to look at and to touch: every layer and head of every example, in one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyhead.analysis.heat_map import AttentionMap, as_lists, columns, heat_map, numbers, shown
from polyhead.analysis.page import Section, data, page, write
from polyhead.core.i18n import tr
from polyhead.errors import UserError

ABOUT = (
    "Each row is a word being written; the darker a cell, the more that word looks at the word of the source above it. "
    "Every row sums to one. Choose an example, a layer and a head; point at a cell, or move with the arrow keys."
)
ABOUT_ALL = (
    "Each row is a token that looks; the stronger the colour of a cell, the more it looks at the token above it. Every row sums to one. "
    "Choose a kind of attention, a layer and a head; point at a cell, or move with the arrow keys."
)
ENDS = ("</s>", "■")  # how the end of a sentence is written


def attention_page(
    path: Path | str, maps: AttentionMap | Sequence[AttentionMap], title: str = "", lead: str = ""
) -> Path:
    """Write one self-contained page with one or several maps."""
    return write(path, page(title or tr("Attention"), lead, [attention_section(maps)]))


def attention_section(maps: AttentionMap | Sequence[AttentionMap]) -> Section:
    """The interactive maps. Without scripts the first one is still there, as a still picture."""
    several = [maps] if isinstance(maps, AttentionMap) else list(maps)
    if not several:
        raise UserError("no attention map to show: give at least one")
    kinds = list(dict.fromkeys(attention.kind for attention in several))
    heading = tr(kinds[0]).capitalize() if len(kinds) == 1 else tr("Attention")
    body = f'<div class="attention">{data([plain(attention) for attention in several])}{heat_map(several[0])}</div>'
    return Section(heading, tr(ABOUT if kinds == ["cross-attention"] else ABOUT_ALL), body)


def plain(attention: AttentionMap) -> dict[str, Any]:
    """A map as the script reads it; weights are whole thousandths, which is all an eye or a tooltip can use."""
    weights = as_lists(attention)
    return {
        "kind": attention.kind,
        "title": attention.title or sentence(attention.source_tokens),
        "source": [shown(token) for token in attention.source_tokens],
        "target": [shown(token) for token in attention.target_tokens],
        "weights": [
            [[[round(1000 * w) for w in row] for row in head] for head in layer] for layer in weights
        ],
        "layers": numbers(attention, len(weights)),
    }


def sentence(tokens: Sequence[str]) -> str:
    """The tokens read as one text: their own spaces where they have any, none between Chinese ones."""
    words = [token for token in tokens if token not in ENDS]
    spaced = any(token.startswith(" ") for token in words) or any(
        columns(token) > len(token) for token in words
    )
    return ("" if spaced else " ").join(words).strip()
