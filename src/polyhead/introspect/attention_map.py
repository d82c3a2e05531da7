"""Attention maps as data and as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.cells import cell_len

from polyhead.core.array_types import HasToList
from polyhead.core.errors import NotFiniteError, UserError
from polyhead.core.i18n import tr
from polyhead.tokenizers.display import escape_controls

WeightMatrix = list[list[float]]
_SHADES = " ░▒▓█"


class AttentionMap(NamedTuple):
    """Attention weights: row t holds the weights of target token t over the source tokens.

    ``weights`` is (layers, heads, T, S): nested lists, or anything that has ``tolist`` (numpy, torch).
    ``title`` is the source as one text, by default the joined tokens. ``layers`` are the numbers of these
    layers in the model, from 1, by default all. ``row_labels`` name the rows where the target token is not
    enough: those of a decoder by the token that goes in and the one that is written.
    """

    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    weights: Any
    kind: str = "cross-attention"
    title: str = ""
    layers: Sequence[int] = ()
    row_labels: Sequence[str] = ()


def nested_weights(attention: AttentionMap) -> list[list[WeightMatrix]]:
    """The weights as nested lists, (layers, heads, T, S), checked against the numbers of tokens."""
    raw_weights = attention.weights
    weights: list[list[WeightMatrix]] = (
        raw_weights.tolist() if isinstance(raw_weights, HasToList) else [list(layer) for layer in raw_weights]
    )
    shape = len(attention.target_tokens), len(attention.source_tokens)
    if not weights or not weights[0] or not all(shape):
        raise UserError("an attention map requires at least one layer, one head and one token on each side")
    for layer in weights:
        for head in layer:
            if len(head) != shape[0] or any(len(row) != shape[1] for row in head):
                head_shape = len(head), len(head[0]) if head else 0
                raise UserError(
                    f"attention weights of {head_shape[0]} x {head_shape[1]} do not match {shape[0]} target "
                    f"and {shape[1]} source tokens; expected (layers, heads, {shape[0]}, {shape[1]})"
                )
            if not all(math.isfinite(w) for row in head for w in row):
                raise NotFiniteError
    return weights


def layer_numbers(attention: AttentionMap, n: int) -> list[int]:
    """The numbers of the n layers."""
    if attention.layers and len(attention.layers) != n:
        raise UserError(f"an attention map of {n} layers has {len(attention.layers)} layer numbers")
    return list(attention.layers or range(1, n + 1))


def mean_matrix(matrices: Sequence[WeightMatrix]) -> WeightMatrix:
    """The elementwise mean of several maps of one size."""
    return [
        [sum(cells) / len(matrices) for cells in zip(*rows, strict=True)]
        for rows in zip(*matrices, strict=True)
    ]


def select_weights(
    attention: AttentionMap, layer: int | None = None, head: int | None = None
) -> WeightMatrix:
    """One (T, S) map. None is the mean over layers, or over heads; negative indices count from the end."""
    weights = nested_weights(attention)
    selected = weights if layer is None else [weights[check_index("layer", layer, len(weights))]]
    return mean_matrix(
        [
            mean_matrix(heads if head is None else [heads[check_index("head", head, len(heads))]])
            for heads in selected
        ]
    )


def check_index(axis: str, index: int, n: int) -> int:
    """Return the index; a UserError if it is out of range."""
    if not -n <= index < n:
        raise UserError(f"no {axis} {index}: expected 0 to {n - 1}")
    return index


def describe_choice(axis: str, index: int | None, names: Sequence[int]) -> str:
    """The choice in words: one of ``names``, or their mean."""
    n = len(names)
    numbers = str(n) if list(names) in (list(range(n)), list(range(1, n + 1))) else ", ".join(map(str, names))
    if index is not None:
        return tr(f"{axis} {{n}} of {{there}}", n=names[index], there=numbers)
    return tr(
        f"mean of {{there}} {axis}s" if numbers == str(n) else f"mean of {axis}s {{there}}", there=numbers
    )


def display_token(token: str) -> str:
    """A token as an axis label: without the space that it starts with, and never invisible."""
    return escape_controls(token.replace("\n", "⏎")).strip() or "␣"


def label_rows(inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Labels of the rows of a decoder, "in → written"; after the last token of a text nothing is written."""
    pairs = zip_longest(inputs, outputs, fillvalue="…")
    return [f"{display_token(token)} → {display_token(next_token)}" for token, next_token in pairs]


def displayed_tokens(attention: AttentionMap) -> tuple[list[str], list[str]]:
    """Labels of the columns and of the rows."""
    rows = attention.row_labels or attention.target_tokens
    source, target = ([display_token(t) for t in tokens] for tokens in (attention.source_tokens, rows))
    return source, target


def attention_text(
    attention: AttentionMap, layer: int | None = -1, head: int | None = None, width: int | None = None
) -> str:
    """One map for the terminal: a row per target token, a shaded cell per source token, the row maximum.

    Columns that do not fit into ``width`` are printed below.
    """
    matrix = select_weights(attention, layer, head)
    source, target = displayed_tokens(attention)
    left, right = (max(map(cell_len, tokens), default=0) for tokens in (target, source))
    fits = len(source) if width is None else max(1, (width - left - right - 9) // 3)
    weights = nested_weights(attention)
    lines = [
        f"{tr(attention.kind)}, {describe_choice('layer', layer, layer_numbers(attention, len(weights)))}, "
        f"{describe_choice('head', head, range(len(weights[0])))}"
    ]
    for start in range(0, len(source), fits):
        columns = range(start, min(start + fits, len(source)))
        lines += ["", " " * (left + 2) + "".join(f"{i + 1:>3}" for i in columns)]
        for token, row in zip(target, matrix, strict=True):
            cells = "".join(
                " " + 2 * _SHADES[min(int(row[i] * len(_SHADES)), len(_SHADES) - 1)] for i in columns
            )
            best = max(range(len(row)), key=row.__getitem__)
            note = f"  {row[best]:.2f} {source[best]}" if best in columns else ""
            lines.append(" " * (left - cell_len(token)) + f"{token}  {cells}{note}".rstrip())
    names = [f"{i} {token}" for i, token in enumerate(source, 1)]
    return "\n".join([*lines, "", *wrap_words(names, width)])


def wrap_words(words: Sequence[str], width: int | None) -> list[str]:
    """Words separated by two spaces, in as many lines as needed."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}  {word}" if lines[-1] else word
        if lines[-1] and width is not None and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
