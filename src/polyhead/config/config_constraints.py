"""Constraints between the options of a ModelSpec, which is not imported here: it calls this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from polyhead.core.errors import UserError

ENCODER_ONLY_OPTIONS = {
    "generator": "generator puts in tokens that an encoder learns to tell",
    "head": "head=false leaves vectors alone, which are of use from an encoder",
    "head_activation": "head_activation is of the map below an encoder's scores of the vocabulary",
    "map_bias": "map_bias is of the maps between an encoder's layers and its scores",
    "pooling": "pooling makes one vector of a text, which is an encoder's to do",
}
"""Options that only an encoder can have, and the reason."""


class Constraint(NamedTuple):
    """A combination of options that is not allowed."""

    is_violated: Callable[[Any], bool]
    message: str


CONSTRAINTS = (
    Constraint(
        lambda model: bool(model.sandwich_norm) and not model.norm_first,
        "sandwich_norm adds a norm to those of norm_first: give norm_first=true as well",
    ),
    Constraint(
        lambda model: (
            model.embedding_norm == "first" and (not model.norm_first or model.sandwich_norm == "after")
        ),
        "embedding_norm=first takes the place of a norm before attention: give norm_first=true as well, "
        "and not sandwich_norm=after",
    ),
    Constraint(
        lambda model: model.share_layers and len(model.pattern) > 1,
        "share_layers gives all layers the weights of the first, and pattern makes layers of several kinds: leave one out",
    ),
    Constraint(
        lambda model: model.share_layers and model.embedding_norm == "first",
        "embedding_norm=first takes a norm from the first layer, and share_layers gives all layers the weights of the first: "
        "give embedding_norm true or false",
    ),
    Constraint(
        lambda model: model.generator > 0 and model.head,
        "head=true scores tokens, which generator does in its place: leave one of them out",
    ),
    Constraint(
        lambda model: model.kind == "encoder-decoder" and model.d_embedding is not None,
        "d_embedding gives embeddings a width of their own, which an encoder or a decoder may have; "
        "this is kind='encoder-decoder': leave it out",
    ),
    Constraint(
        lambda model: (
            model.head_activation == "none" and (model.generator > 0 or model.d_embedding is not None)
        ),
        "head_activation=none leaves out the map below an encoder's scores, which generator and d_embedding need: "
        "give an activation",
    ),
)


def check_constraints(model: Any) -> None:
    """Raise a UserError for options that conflict or have no effect on a model of this kind."""
    for name, reason in ENCODER_ONLY_OPTIONS.items():
        if model.kind != "encoder" and getattr(model, name) != type(model).model_fields[name].default:
            raise UserError(f"{reason}; this is kind={model.kind!r}: leave it out")
    for constraint in CONSTRAINTS:
        if constraint.is_violated(model):
            raise UserError(constraint.message)
