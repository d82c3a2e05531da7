"""Recorders of position schemes: rows that are added, angles, slopes and tables of distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.explain.trace import Place, Step, Trace
from polyhead.nn.position.absolute import LearnedPosition, SinusoidalPosition
from polyhead.nn.position.base import Position
from polyhead.nn.position.disentangled import DisentangledPosition
from polyhead.nn.position.relative import Alibi, PairPosition, ScoreShape, Shaw, T5Bias
from polyhead.nn.position.rope import Rope

Arrays = dict[str, Tensor | None]
Facts = dict[str, Any]


class Tokens(NamedTuple):
    """The tokens that a scheme is applied to: their positions (1, T), how many, and which are shown."""

    pos: Tensor | None
    length: int
    window: slice


def record_position(
    trace: Trace, place: Place, scheme: Position, pos: Tensor | None, length: int
) -> dict[str, str]:
    """Write down a scheme that acts inside of attention, before the first layer that uses it.

    Returns the names of its arrays.
    """
    key = f"{place.stack or place.path}.position{id(scheme)}"
    if key in trace.schemes or scheme.kind not in ("heads", "scores"):
        return trace.schemes.get(key, {})
    role = f"{place.path}.position"
    arrays, facts = describe_scheme(scheme, Tokens(pos, length, trace.window(place.side)))
    values = trace.schemes[key] = trace.store_all(trace.unique_path(role), arrays)
    step = Step(place._replace(path=role, role="position"), "position", scheme, None, values=values)
    step.facts = {"kind": scheme.kind} | facts
    trace.add(step)
    return values


def describe_scheme(scheme: Position, tokens: Tokens) -> tuple[Arrays, Facts]:
    """The arrays and the settings of a scheme; nothing of one of a plugin."""
    for kind, describe in _SCHEMES.items():
        if isinstance(scheme, kind):
            return describe(scheme, tokens)
    return {}, {}


def _describe_facts(*names: str) -> Callable[[Any, Tokens], tuple[Arrays, Facts]]:
    """Describe a scheme without arrays by its attributes."""
    return lambda scheme, tokens: ({}, {name: getattr(scheme, name) for name in names})


def _describe_rope(scheme: Rope, tokens: Tokens) -> tuple[Arrays, Facts]:
    cos, sin = scheme.prepare(tokens.pos, tokens.length, scheme.inv_freq.device, (1,)).tables[1]
    arrays: Arrays = {
        "cos": cos[0, tokens.window, 0],
        "sin": sin[0, tokens.window, 0],
        "rate": scheme.inv_freq,
    }
    facts = {
        "theta": scheme.theta,
        "layout": scheme.layout,
        "scaling": scheme.scaling,
        "factor": scheme.factor,
    }
    return arrays, facts | {"attention_factor": scheme.attention_factor, "rotary_dim": scheme.rotary_dim}


def _describe_t5(scheme: T5Bias, tokens: Tokens) -> tuple[Arrays, Facts]:
    facts = {"buckets": scheme.buckets, "max_distance": scheme.max_distance, "causal": scheme.causal}
    return {"table": scheme.weight, "index": _pair_index(scheme, tokens)}, facts


def _describe_shaw(scheme: Shaw, tokens: Tokens) -> tuple[Arrays, Facts]:
    value = scheme.value if scheme.adds_values else None
    return {"key": scheme.key, "value": value, "index": _pair_index(scheme, tokens)}, {"clip": scheme.clip}


def _describe_disentangled(scheme: DisentangledPosition, tokens: Tokens) -> tuple[Arrays, Facts]:
    facts = {"span": scheme.span, "max_distance": scheme.max_distance, "terms": scheme.terms}
    return {"index": _pair_index(scheme, tokens)}, facts


def _pair_index(scheme: PairPosition, tokens: Tokens) -> Tensor:
    """The row of the table for each pair of tokens shown: [T, S]."""
    pos = tokens.pos
    size = ScoreShape(1, tokens.length, tokens.length, torch.device("cpu") if pos is None else pos.device)
    pairs = scheme.compute_pairs(pos, None if pos is None else pos[:, None], size, torch.float32)
    if isinstance(scheme, DisentangledPosition):  # in the part of the table that the text uses
        index, first, _ = pairs
        pairs = index + first
    shown: Tensor = pairs[0, 0, tokens.window, tokens.window]
    return shown


_SCHEMES: dict[type[Position], Callable[[Any, Tokens], tuple[Arrays, Facts]]] = {
    Rope: _describe_rope,
    Alibi: lambda scheme, tokens: ({"slopes": torch.tensor(scheme.slopes)}, {}),
    T5Bias: _describe_t5,
    Shaw: _describe_shaw,
    DisentangledPosition: _describe_disentangled,
    SinusoidalPosition: _describe_facts("base", "layout", "endpoint", "offset"),
    LearnedPosition: lambda scheme, tokens: ({}, {"offset": scheme.offset, "rows": len(scheme.weight)}),
}
