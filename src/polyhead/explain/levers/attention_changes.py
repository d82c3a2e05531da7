"""Levers on attention: without its scale, its causal mask, its positions; and words in another order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch import nn

from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting, run_changed
from polyhead.explain.levers.lever_input import LeverInput, copy_modules
from polyhead.models import CausalLM, Model
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position

_MAX_SCALE = 1000.0
_MAX_SEED = 2**31 - 1


def list_scales(model: nn.Module) -> list[float]:
    """The factor on q k^T of every softmax attention."""
    return [
        part.head_dim**-0.5 if part.scale is None else part.scale
        for part in model.modules()
        if isinstance(part, Attention)
    ]


def set_scale(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Set the factor on q k^T of every softmax attention, of self- and cross-attention alike."""
    for part in model.modules():
        if isinstance(part, Attention):
            part.scale = setting["scale"]


def _find_scale_obstacle(lever_input: LeverInput) -> str:
    scales = list_scales(lever_input.model)
    if not scales:
        return "this model has no softmax attention"
    return "" if any(scale != 1 for scale in scales) else "attention of this model has no scale"


def _compute_scale(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    scales = list_scales(lever_input.model)
    return run_changed(set_scale)(lever_input, setting)._replace(detail={"plain_scale": scales[0]})


SCALE_LEVER = Lever(
    "scale",
    "attention",
    _find_scale_obstacle,
    lambda _: [Field("scale", "number", 1.0, 0, _MAX_SCALE)],
    lambda _: [{"scale": 1.0}],
    _compute_scale,
)


def list_causal_attentions(model: nn.Module) -> Iterator[Any]:
    """Every attention with a causal mask."""
    for part in model.modules():
        if hasattr(part, "q_proj") and getattr(part, "causal", False):
            yield part


def remove_causal_masks(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Let every token attend to the tokens after it too."""
    for attention in list_causal_attentions(model):
        attention.causal = False


def _find_mask_obstacle(lever_input: LeverInput) -> str:
    has_mask = any(True for _ in list_causal_attentions(lever_input.model))
    return "" if has_mask else "attention of this model has no causal mask"


CAUSAL_MASK_LEVER = Lever(
    "causal_mask",
    "attention",
    _find_mask_obstacle,
    lambda _: [],
    lambda _: [{}],
    run_changed(remove_causal_masks),
)


def list_positioned(model: nn.Module) -> Iterator[Any]:
    """Every module with a position scheme that acts: embeddings and attentions."""
    for part in model.modules():
        position = getattr(part, "position", None)
        if isinstance(position, Position) and position.kind != "nothing":
            yield part


def remove_positions(model: Model, lever_input: LeverInput, setting: Setting) -> None:
    """Replace every position scheme by the scheme "none"."""
    for part in [*list_positioned(model)]:
        part.position = Position(model.config.attention_shape(causal=False))


def _find_position_obstacle(lever_input: LeverInput) -> str:
    has_positions = any(True for _ in list_positioned(lever_input.model))
    return "" if has_positions else "this model has no position scheme"


POSITIONS_LEVER = Lever(
    "positions",
    "attention",
    _find_position_obstacle,
    lambda _: [],
    lambda _: [{}],
    run_changed(remove_positions),
)


def shuffle_words(lever_input: LeverInput, seed: int) -> list[int]:
    """The index of the token that comes to each place of the input when its words are shuffled.

    Words keep the order of their own tokens; a language model keeps its last token in place. The order is
    never that of the text.
    """
    tokens, words = lever_input.source or lever_input.tokens, _list_movable_words(lever_input)
    shuffled = list(words)
    rng = random.Random(seed)
    while shuffled == words:
        rng.shuffle(shuffled)
    order, places = list(range(len(tokens))), sorted(i for word in words for i in word)
    for place, token in zip(places, (i for word in shuffled for i in word), strict=True):
        order[place] = token
    return order


def _list_movable_words(lever_input: LeverInput) -> list[list[int]]:
    """The words that may be moved: of a language model those before the last token."""
    if not isinstance(lever_input.model, CausalLM):
        return lever_input.words
    last = len(lever_input.tokens) - 1
    words = [[i for i in word if i < last] for word in lever_input.words]
    return [word for word in words if word]


def _find_shuffle_obstacle(lever_input: LeverInput) -> str:
    return "" if len(_list_movable_words(lever_input)) > 1 else "the text has fewer than two words to move"


def _list_shuffle_cases(lever_input: LeverInput) -> list[Setting]:
    without = [] if _find_position_obstacle(lever_input) else [{"positions": "none"}]
    return [{"positions": "kept"}, *without]


def _compute_shuffle(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The outputs of shuffled words, in the order of the text, with or without positions.

    Each is compared with the same model on the text in order. Of a language model only the last row has the
    same tokens before it.
    """
    order = shuffle_words(lever_input, setting["seed"])
    has_source = lever_input.source is not None
    tokens = lever_input.source if lever_input.source is not None else lever_input.tokens
    shuffled_tokens = [tokens[i] for i in order]
    place_of = {token: place for place, token in enumerate(order)}
    rows = lever_input.rows if has_source else [None if i is None else place_of[i] for i in lever_input.rows]
    shuffled = lever_input.replace(rows=rows, **{"source" if has_source else "tokens": shuffled_tokens})
    model = copy_modules(lever_input.model)
    if setting["positions"] == "none":
        remove_positions(model, lever_input, {})
    is_comparable = None
    if isinstance(model, CausalLM):
        is_comparable = [i == len(tokens) - 1 for i in lever_input.rows]
    return LeverOutput(
        shuffled.compute_logits(model),
        lever_input.compute_logits(model),
        {"positions": "none", "shuffled": False} if setting["positions"] == "none" else None,
        is_comparable,
        {"order": order, "side": 0},
    )


SHUFFLE_LEVER = Lever(
    "shuffle",
    "attention",
    _find_shuffle_obstacle,
    lambda _: [
        Field("positions", "choice", "kept", values=("kept", "none")),
        Field("seed", "integer", 0, 0, _MAX_SEED),
    ],
    _list_shuffle_cases,
    _compute_shuffle,
)
