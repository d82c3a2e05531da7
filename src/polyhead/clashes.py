"""Which options of a model do not go together. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from polyhead.config import ModelSection
from polyhead.errors import UserError

OF_ENCODERS = {
    "generator": "generator puts in tokens that an encoder learns to tell",
    "head": "head=false leaves vectors alone, which are of use from an encoder",
    "head_activation": "head_activation is of the map below an encoder's scores of the vocabulary",
    "map_bias": "map_bias is of the maps between an encoder's layers and its scores",
    "pooling": "pooling makes one vector of a text, which is an encoder's to do",
}
"""Options that only an encoder can have, and why."""


class Clash(NamedTuple):
    """Options of which one is of no use beside the others."""

    stands: Callable[[ModelSection], bool]
    message: str


CLASHES = (
    Clash(
        lambda model: bool(model.sandwich_norm) and not model.norm_first,
        "sandwich_norm adds a norm to those of norm_first: give norm_first=true as well",
    ),
    Clash(
        lambda model: (
            model.embedding_norm == "first" and (not model.norm_first or model.sandwich_norm == "after")
        ),
        "embedding_norm=first takes the place of a norm before attention: give norm_first=true as well, "
        "and not sandwich_norm=after",
    ),
    Clash(
        lambda model: model.share_layers and len(model.pattern) > 1,
        "share_layers gives all layers the weights of the first, and pattern makes layers of several kinds: leave one out",
    ),
    Clash(
        lambda model: model.share_layers and model.embedding_norm == "first",
        "embedding_norm=first takes a norm from the first layer, and share_layers gives all layers the weights of the first: "
        "give embedding_norm true or false",
    ),
    Clash(
        lambda model: model.generator > 0 and model.head,
        "head=true scores tokens, which generator does in its place: leave one of them out",
    ),
    Clash(
        lambda model: model.kind == "encoder-decoder" and model.d_embedding is not None,
        "d_embedding gives embeddings a width of their own, which an encoder or a decoder may have; "
        "this is kind='encoder-decoder': leave it out",
    ),
    Clash(
        lambda model: (
            model.head_activation == "none" and (model.generator > 0 or model.d_embedding is not None)
        ),
        "head_activation=none leaves out the map below an encoder's scores, which generator and d_embedding need: "
        "give an activation",
    ),
)


def refuse_clashes(model: ModelSection) -> None:
    """A UserError where an option is of no use without another, or to a model of this kind."""
    for name, reason in OF_ENCODERS.items():
        if model.kind != "encoder" and getattr(model, name) != ModelSection.model_fields[name].default:
            raise UserError(f"{reason}; this is kind={model.kind!r}: leave it out")
    for clash in CLASHES:
        if clash.stands(model):
            raise UserError(clash.message)
