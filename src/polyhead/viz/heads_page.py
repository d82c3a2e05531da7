"""The page of all heads of a run: their kinds, their scores, and a typical text of each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len

from polyhead.core.i18n import tr
from polyhead.introspect.attention_map import AttentionMap, display_token
from polyhead.introspect.head_scores import BROAD, OTHER, HeadSurvey
from polyhead.viz import html_page
from polyhead.viz.html_page import PageSection, scroll_region
from polyhead.viz.plot import clip_label, svg, tag, text

HEADS_PAGE = "heads.html"
HEAD_KINDS = {
    "previous": ("←", "previous token", "the token before"),
    "same": ("=", "same token", "the token itself, and where it occurs again"),
    "first": ("⇤", "first token", "the first token of the text, or the start mark"),
    "induction": ("↻", "induction", "the token that followed an earlier occurrence of this token"),
    "alignment": ("⇄", "alignment", "the source token with which IBM Model 1 aligns the written token"),
    "punctuation": (",", "punctuation", "punctuation and the end mark"),
    BROAD: ("∿", "broad", "everything: at least 90% of the entropy of equal weights"),
    OTHER: ("·", "none of these", ""),
}
"""Kind of a head -> its mark, its name and what it looks at."""
_MIN_LINK = 0.1  # weight of the links that are drawn
_HEIGHT = 116  # pixels of a drawing


def write_heads_page(path: Path, heads: Mapping[str, HeadSurvey], links: Mapping[str, Any] | None) -> Path:
    """Write one self-contained page with the heads of all kinds of attention."""
    return html_page.save_page(path, _render_page(heads, links))


@html_page.in_both_languages
def _render_page(heads: Mapping[str, HeadSurvey], links: Mapping[str, Any] | None) -> str:
    lead = tr(
        "What each head looks at: the mean of its weight on tokens of each kind, over {n} validation texts. "
        "A head is of the kind where it is furthest beyond equal weights, by at least 20% of what is left. "
        "Its sentence is the one in which it shows this best.",
        n=next(iter(heads.values())).n_texts,
    )
    legend = "".join(
        f'<li class="kind-{kind}"><b>{mark}</b> {escape(tr(name))}'
        f"<span>{about and escape(tr(about))}</span></li>"
        for kind, (mark, name, about) in HEAD_KINDS.items()
        if any(kind in row for one in heads.values() for row in one.kinds)
    )
    sections = [PageSection(tr("Kinds"), "", f'<ul class="kinds">{legend}</ul>')]
    sections += [_head_section(name, one) for name, one in heads.items()]
    style = html_page.read_asset("heads.css")
    return html_page.render_html(tr("The heads"), lead, sections, style=style, links=links)


def _head_section(name: str, heads: HeadSurvey) -> PageSection:
    """A map of the heads of one kind of attention, and a figure of each."""
    n_heads, kind = len(heads.kinds[0]), tr(heads.typical[0][0].kind).capitalize()
    rows, figures = ["<td></td>" + "".join(f'<th scope="col">{i}</th>' for i in range(n_heads))], []
    for layer, number in enumerate(heads.layers):
        rows.append(f'<th scope="row">{escape(tr("layer {n}", n=number))}</th>')
        for head, kind_of in enumerate(heads.kinds[layer]):
            mark, kind_name, _ = HEAD_KINDS[kind_of]
            title = tr("layer {layer}, head {head}", layer=number, head=head)
            id = f"{name}-{number}-{head}"
            title, kind_name = escape(title), escape(tr(kind_name))
            link = f'class="kind-{kind_of}" href="#{id}" title="{title}: {kind_name}"'
            rows[-1] += f"<td><a {link}>{mark}</a></td>"
            drawing = scroll_region(draw_links(heads.typical[layer][head], layer, head), title)
            caption = f"<figcaption><b>{title}</b> <em>{mark} {kind_name}</em></figcaption>"
            scores = f"<p>{escape(describe_scores(heads, layer, head))}</p>"
            figures.append(
                f'<figure class="head kind-{kind_of}" id="{id}">{caption}{drawing}{scores}</figure>'
            )
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table class="heads"><caption class="unseen">{escape(kind)}</caption>{table}</table>'
    return PageSection(kind, "", f'{scroll_region(table, kind)}<div class="figures">{"".join(figures)}</div>')


def describe_scores(heads: HeadSurvey, layer: int, head: int) -> str:
    """All scores of a head in one line, each with that of equal weights."""
    parts = []
    for name, values in heads.values.items():
        numbers = {"value": values[layer, head], "chance": heads.chances[name][layer, head]}
        if name == "entropy":
            parts.append(tr("entropy {value:.2f} (of {chance:.2f})", **numbers))
        elif np.isfinite(numbers["value"]):
            name = tr(HEAD_KINDS[name][1])
            parts.append(tr("{name} {value:.0%} (equal weights {chance:.0%})", name=name, **numbers))
    return " · ".join(parts)


def draw_links(attention: AttentionMap, layer: int, head: int) -> str:
    """The tokens that look above those that are looked at; the stronger a line, the larger its weight."""
    sides = attention.source_tokens, attention.source_tokens
    if attention.kind == "cross-attention":
        sides = attention.target_tokens, attention.source_tokens
    labels = [[clip_label(display_token(token)) for token in side] for side in sides]
    ends = [np.cumsum([7.6 * cell_len(label) + 12 for label in side]) for side in labels]
    centres = [(4 + (end + np.append(0, end[:-1])) / 2).tolist() for end in ends]
    places = [(x, y, word) for y, xs, words in zip((18, _HEIGHT - 6), centres, labels, strict=True)
              for x, word in zip(xs, words, strict=True)]  # fmt: skip
    parts = [text("token middle", *place) for place in places]
    weights = np.asarray(attention.weights[layer][head])
    strongest = sorted(np.argwhere(weights >= _MIN_LINK).tolist(), key=lambda cell: -weights[*cell])
    for query, key in reversed(strongest):  # the strongest lines above all
        ends_of_line = {"x1": centres[0][query], "y1": 24, "x2": centres[1][key], "y2": _HEIGHT - 22}
        parts.append(tag("line", "link", **ends_of_line, opacity=f"{weights[query, key]:.2f}"))
    name = "; ".join(f"{labels[0][q]} → {labels[1][k]} {weights[q, k]:.0%}" for q, k in strongest[:3])
    width = round(8 + max(end[-1] for end in ends))
    return svg("links", width, _HEIGHT, name, parts, width=f"{width}", height=f"{_HEIGHT}")
