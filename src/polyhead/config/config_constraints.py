"""Constraints between the options of a ModelSpec, which is not imported here: it calls this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from polyhead.core.errors import UserError

ENCODER_ONLY_OPTIONS = {
    "generator_layers": "generator_layers replaces tokens that an encoder learns to detect",
    "lm_head": "lm_head=false leaves only the output vectors, which only an encoder supports",
    "head_transform_activation": "head_transform_activation belongs to the transform before an encoder's "
    "vocabulary logits",
    "head_transform_bias": "head_transform_bias belongs to the linear maps between an encoder's layers and "
    "its logits",
    "pooling": "pooling turns a text into one vector, which only an encoder supports",
}
"""Options that only an encoder can have, and the reason; ``head_transform`` allows those of its name."""


class Constraint(NamedTuple):
    """A combination of options that is not allowed."""

    is_violated: Callable[[Any], bool]
    message: str


CONSTRAINTS = (
    Constraint(
        lambda model: bool(model.sandwich_norm) and not model.norm_first,
        "sandwich_norm requires norm_first=true",
    ),
    Constraint(
        lambda model: (
            model.embedding_norm == "first" and (not model.norm_first or model.sandwich_norm == "after")
        ),
        "embedding_norm=first replaces a norm before attention: it requires norm_first=true, without "
        "sandwich_norm=after",
    ),
    Constraint(
        lambda model: model.encoder is not None and model.kind != "encoder-decoder",
        "encoder has the sizes of the encoder of an encoder-decoder: remove it",
    ),
    Constraint(
        lambda model: (
            model.encoder is not None
            and (model.encoder.d_model != model.d_model or model.encoder.vocab_size is not None)
            and model.tie_embeddings in ("all", "inputs")
        ),
        "encoder has its own d_model or vocab_size, so the source cannot have the embeddings of the target: "
        "set tie_embeddings to target or none",
    ),
    Constraint(
        lambda model: (
            model.head_transform
            and (model.kind != "encoder-decoder" or model.head_transform_activation == "none")
        ),
        "head_transform adds a transform with an activation to the head of an encoder-decoder: remove it",
    ),
    Constraint(
        lambda model: model.share_layers and len(model.layer_pattern) > 1,
        "share_layers and layer_pattern cannot be combined: with share_layers all layers have the "
        "weights of the first",
    ),
    Constraint(
        lambda model: model.share_layers and model.embedding_norm == "first",
        "embedding_norm=first and share_layers cannot be combined: set embedding_norm to true or false",
    ),
    Constraint(
        lambda model: model.generator_layers > 0 and model.lm_head,
        "lm_head=true and generator_layers cannot be combined: remove one of them",
    ),
    Constraint(
        lambda model: model.kind == "encoder-decoder" and model.d_embedding is not None,
        "d_embedding is supported for an encoder or a decoder; this is kind='encoder-decoder': remove it",
    ),
    Constraint(
        lambda model: (
            model.head_transform_activation == "none"
            and (model.generator_layers > 0 or model.d_embedding is not None)
        ),
        "head_transform_activation=none leaves out the map below an encoder's scores, which "
        "generator_layers and d_embedding need: "
        "give an activation",
    ),
)


def check_constraints(model: Any) -> None:
    """Raise a UserError for options that conflict or have no effect on a model of this kind."""
    for name, reason in ENCODER_ONLY_OPTIONS.items():
        is_allowed = model.kind == "encoder" or (model.head_transform and name.startswith("head_transform"))
        if not is_allowed and getattr(model, name) != type(model).model_fields[name].default:
            raise UserError(f"{reason}; this is kind={model.kind!r}: remove it")
    for constraint in CONSTRAINTS:
        if constraint.is_violated(model):
            raise UserError(constraint.message)
