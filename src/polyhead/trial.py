"""Parts that do not go together say so when a config is read: one layer of each kind is built without memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polyhead.config import LayerParts, ModelSection
from polyhead.errors import UserError
from polyhead.registry import ATTENTION, POOLING

if TYPE_CHECKING:
    from torch import nn


class Tried(NamedTuple):
    """A layer as it was built."""

    turn: int
    own: LayerParts  # what stands in the pattern for it
    block: str
    layer: nn.Module
    position: Any
    attends: bool  # to itself, or to a source by the same attention
    turned: bool  # whether its position acts in it, or need not


def try_layers(config: ModelSection) -> None:
    """Build them; what does not go together, or is of no use to any of them, is a UserError."""
    tried = tuple(_built(config))
    _check_embedding(config, tried)
    _check_pattern(config, tried)
    _check_attention(config, tried)
    _check_position(config, [one for one in tried if one.own.position is None])


def _built(config: ModelSection) -> Iterator[Tried]:
    """A layer of each turn of each stack, and what pools."""
    import torch

    from polyhead.undrawn import Undrawn

    sides = [(config.kind == "decoder", False), *([(True, True)] if config.kind == "encoder-decoder" else [])]
    with torch.device("meta"), Undrawn():
        for causal, cross in sides:
            common = config.common_position(causal)
            for turn, own in enumerate(config.pattern or (LayerParts(),)):
                at, position = config.at(turn), config.position_of(turn, common, causal)
                layer = at.layer(position, causal, cross)
                source = getattr(layer, "cross", None) is not None and config.cross_attention is None
                turned = position.acts_on in ("nothing", "embeddings") or position in layer.modules()
                block = at.block_of(cross).name
                yield Tried(turn, own, block, layer, position, hasattr(layer, "attn") or source, turned)
        if config.pooling is not None:
            POOLING.build(config.pooling, config)


def _check_embedding(config: ModelSection, tried: Sequence[Tried]) -> None:
    """What acts on the embeddings is common to all layers, and the first has a norm to give to them."""
    for one in tried:
        if one.own.position is not None and one.position.acts_on == "embeddings":
            raise UserError(
                f"position {one.own.position.name!r} in pattern acts on the embeddings, which no layer has alone"
            )
        if config.embedding_norm == "first" and one.turn == 0 and not hasattr(one.layer, "attn_residual"):
            raise UserError(
                f"embedding_norm=first takes the place of a norm before attention; block {one.block!r} has none: give true or false"
            )


def _check_pattern(config: ModelSection, tried: Sequence[Tried]) -> None:
    """Each part of the pattern is of use to a layer of its turn."""
    for turn, own in enumerate(config.pattern):
        layers = [one for one in tried if one.turn == turn]
        of_use = {
            "attention": any(one.attends for one in layers),
            "position": any(one.turned for one in layers),
        }
        for name, used in of_use.items():
            choice = getattr(own, name)
            if choice is not None and not used:
                raise UserError(
                    f"pattern: {name} {choice.name!r} is of no use to block {config.at(turn).block.name!r}, "
                    "which has no self-attention: leave it out"
                )


def _check_attention(config: ModelSection, tried: Sequence[Tried]) -> None:
    """A layer attends by the common attention, where one was chosen."""
    default = ModelSection.model_fields["attention"].default
    free = [one for one in tried if one.own.attention is None]
    unused = free and not any(one.attends for one in free)
    if unused and ATTENTION.check(config.attention) != ATTENTION.check(default):
        blocks = " and ".join(dict.fromkeys(one.block for one in tried))
        raise UserError(
            f"no layer attends by attention {config.attention.name!r}, the blocks being {blocks}: leave it out"
        )


def _check_position(config: ModelSection, tried: Sequence[Tried]) -> None:
    """The common position acts in one of the layers that have no other."""
    if not tried or any(one.turned for one in tried):
        return
    if any(hasattr(one.layer, "attn") and one.own.attention is None for one in tried):
        raise UserError(
            f"position {config.position.name!r} acts within attention, and attention {config.attention.name!r} does not hold it "
            "(self.position = position): use none, or one that is added to the embeddings, such as sinusoidal or learned"
        )
    blocks = " and ".join(dict.fromkeys(one.block for one in tried))
    raise UserError(
        f"position {config.position.name!r} acts on self-attention, and blocks {blocks} have none: "
        "use none, or one that is added to the embeddings, such as sinusoidal or learned"
    )
