"""Attention weights as data, as text for the terminal, and as a still picture."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.text.control import spelled

Matrix = list[list[float]]
SHADES = " ░▒▓█"


class AttentionMap(NamedTuple):
    """Who looks at whom: row t holds the weights that target token t gives to each source token.

    ``weights`` is (layers, heads, T, S): nested lists, or anything that has ``tolist`` (numpy, torch).
    ``title`` is the source as one text; without it the tokens are put together. ``layers`` says which of the model's
    layers these are, from 1; without it they are all there are.
    """

    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    weights: Any
    kind: str = "cross-attention"
    title: str = ""
    layers: Sequence[int] = ()


def as_lists(attention: AttentionMap) -> list[list[Matrix]]:
    """The weights as nested lists, (layers, heads, T, S), checked against the numbers of tokens."""
    given = attention.weights
    weights: list[list[Matrix]] = (
        given.tolist() if hasattr(given, "tolist") else [list(layer) for layer in given]
    )
    wanted = len(attention.target_tokens), len(attention.source_tokens)
    if not weights or not weights[0] or not all(wanted):
        raise UserError("an attention map needs at least one layer, one head, and a token on each side")
    for layer in weights:
        for head in layer:
            if len(head) != wanted[0] or any(len(row) != wanted[1] for row in head):
                came = len(head), len(head[0]) if head else 0
                raise UserError(
                    f"attention weights of {came[0]} x {came[1]} do not fit {wanted[0]} target "
                    f"and {wanted[1]} source tokens; wanted (layers, heads, {wanted[0]}, {wanted[1]})"
                )
            if not all(math.isfinite(w) for row in head for w in row):
                raise UserError("attention weights hold a value that is no number: did the training diverge?")
    return weights


def numbers(attention: AttentionMap, n: int) -> list[int]:
    """The numbers of the n layers."""
    if attention.layers and len(attention.layers) != n:
        raise UserError(f"an attention map of {n} layers was given {len(attention.layers)} numbers for them")
    return list(attention.layers or range(1, n + 1))


def mean(matrices: Sequence[Matrix]) -> Matrix:
    """The mean of several maps of one size, weight by weight."""
    return [
        [sum(cells) / len(matrices) for cells in zip(*rows, strict=True)]
        for rows in zip(*matrices, strict=True)
    ]


def pick(attention: AttentionMap, layer: int | None = None, head: int | None = None) -> Matrix:
    """One (T, S) map. None means the mean: of all layers, of all heads; negative numbers count from the end."""
    weights = as_lists(attention)
    chosen = weights if layer is None else [weights[checked("layer", layer, len(weights))]]
    return mean(
        [mean(heads if head is None else [heads[checked("head", head, len(heads))]]) for heads in chosen]
    )


def checked(what: str, index: int, n: int) -> int:
    """The index, or an error that says which there are."""
    if not -n <= index < n:
        raise UserError(f"no {what} {index}: there are {n}, numbered 0 to {n - 1}")
    return index


def which(what: str, index: int | None, names: Sequence[int]) -> str:
    """The choice in words; people count from one."""
    n = len(names)
    there = str(n) if list(names) == list(range(1, n + 1)) else ", ".join(map(str, names))
    if index is not None:
        return tr(f"{what} {{n}} of {{there}}", n=names[index], there=there)
    return tr(f"mean of {{there}} {what}s" if there == str(n) else f"mean of {what}s {{there}}", there=there)


def shown(token: str) -> str:
    """A token as it can be read on an axis: without the space it begins with, and never invisible."""
    return spelled(token.replace("\n", "⏎")).strip() or "␣"


def columns(text: str) -> int:
    """How many columns of a terminal the text takes: Chinese characters take two, combining marks none."""
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


def attention_text(
    attention: AttentionMap, layer: int | None = -1, head: int | None = None, width: int | None = None
) -> str:
    """One map for the terminal: a row a target token, a shaded cell a source token, and where each looks most.

    What takes more than ``width`` columns of the terminal goes on below.
    """
    matrix = pick(attention, layer, head)
    source, target = ([shown(t) for t in tokens] for tokens in attention[:2])
    left, right = (max(map(columns, tokens), default=0) for tokens in (target, source))
    fits = len(source) if width is None else max(1, (width - left - right - 9) // 3)
    weights = as_lists(attention)
    lines = [
        f"{tr(attention.kind)}, {which('layer', layer, numbers(attention, len(weights)))}, "
        f"{which('head', head, range(1, len(weights[0]) + 1))}"
    ]
    for start in range(0, len(source), fits):
        shown_here = range(start, min(start + fits, len(source)))
        lines += ["", " " * (left + 2) + "".join(f"{i + 1:>3}" for i in shown_here)]
        for token, row in zip(target, matrix, strict=True):
            cells = "".join(
                " " + 2 * SHADES[min(int(row[i] * len(SHADES)), len(SHADES) - 1)] for i in shown_here
            )
            best = max(range(len(row)), key=row.__getitem__)
            said = f"  {row[best]:.2f} {source[best]}" if best in shown_here else ""
            lines.append(" " * (left - columns(token)) + f"{token}  {cells}{said}".rstrip())
    names = [f"{i} {token}" for i, token in enumerate(source, 1)]
    return "\n".join([*lines, "", *filled(names, width)])


def filled(words: Sequence[str], width: int | None) -> list[str]:
    """Words two blanks apart, in as many lines as that takes."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}  {word}" if lines[-1] else word
        if lines[-1] and width is not None and columns(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def heat_map(attention: AttentionMap, layer: int | None = -1, head: int | None = None, cell: int = 26) -> str:
    """One map as an SVG element: the darker a cell, the larger its weight."""
    matrix = pick(attention, layer, head)
    source, target = ([clipped(shown(t)) for t in tokens] for tokens in attention[:2])
    left, top = 12 + 7.4 * max(map(columns, target)), 24 + 6.6 * max(map(columns, source))
    right = 14 + 5.4 * columns(source[-1])
    width, height = left + cell * len(source) + right, top + cell * len(target) + 4
    name = tr(
        "{kind}: {rows} target by {columns} source tokens",
        kind=tr(attention.kind),
        rows=len(target),
        columns=len(source),
    )
    parts = [
        f'<svg class="heat" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(name)}">'
    ]
    for s, token in enumerate(source):
        x, y = left + cell * (s + 0.5), top - 8
        parts.append(
            f'<text class="token" transform="translate({x:.1f} {y:.1f}) rotate(-50)">{escape(token)}</text>'
        )
    for t, (token, row) in enumerate(zip(target, matrix, strict=True)):
        y = top + cell * t
        parts.append(
            f'<text class="token end" x="{left - 8:.1f}" y="{y + cell / 2 + 5:.1f}">{escape(token)}</text>'
        )
        for s, weight in enumerate(row):
            box = f'x="{left + cell * s:.1f}" y="{y:.1f}" width="{cell - 2}" height="{cell - 2}" rx="3"'
            parts.append(
                f'<rect class="under" {box}/><rect class="cell" {box} fill-opacity="{opacity(weight)}"/>'
            )
    return "".join([*parts, "</svg>"])


def opacity(weight: float) -> str:
    """How dark a weight is: the power 0.7 keeps small weights visible; the page's script does the same."""
    return f"{max(weight, 0.0) ** 0.7:.3f}"


def clipped(text: str, at_most: int = 14) -> str:
    """No longer than an axis has room for."""
    return text if len(text) <= at_most else text[: at_most - 1] + "…"
