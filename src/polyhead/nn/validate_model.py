"""Check that a model config can be built: build one layer of each kind on the meta device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from polyhead.config.model import LayerOverride, ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, POOLING
from polyhead.nn.init import SkipInit
from polyhead.nn.stack import build_common_position, build_layer, build_layer_position

Spec = TypeVar("Spec", bound=ModelSpec)


class BuiltLayer(NamedTuple):
    """A layer that was built for the check."""

    pattern_index: int
    override: LayerOverride  # its entry in the pattern
    block: str
    layer: Any  # nn.Module with what ``Layer`` has
    position: Any
    has_attention: bool  # uses config.attention, for self- or cross-attention
    uses_position: bool  # applies its position scheme, or the scheme acts elsewhere


def check_model(config: Spec) -> Spec:
    """Return the config; a UserError if its parts do not fit together or have no effect on any layer."""
    layers = tuple(build_sample_layers(config))
    _check_embedding(config, layers)
    _check_pattern(config, layers)
    _check_attention(config, layers)
    _check_position(config, [layer for layer in layers if layer.override.position is None])
    return config


def build_sample_layers(config: ModelSpec) -> Iterator[BuiltLayer]:
    """Build a layer for each pattern entry of each stack, and the pooling."""
    sides = [(config.kind == "decoder", False), *([(True, True)] if config.kind == "encoder-decoder" else [])]
    with torch.device("meta"), SkipInit():
        for causal, cross in sides:
            spec = config if causal or cross else config.encoder_spec
            common = build_common_position(spec, causal)
            for index, override in enumerate(config.layer_pattern or (LayerOverride(),)):
                position = build_layer_position(spec, index, common, causal)
                layer = build_layer(spec, index, position, causal, cross)
                source = layer.cross is not None and config.cross_attention is None
                uses_position = position.kind in ("nothing", "embeddings") or position in layer.modules()
                block = config.layer_config(index).block_choice(cross).name
                yield BuiltLayer(
                    index, override, block, layer, position, layer.attn is not None or source, uses_position
                )
        if config.pooling is not None:
            POOLING.build(config.pooling, config)


def _check_embedding(config: ModelSpec, built_layers: Sequence[BuiltLayer]) -> None:
    """Positions on embeddings are common to all layers; embedding_norm=first replaces a norm of layer 0."""
    for built_layer in built_layers:
        if built_layer.override.position is not None and built_layer.position.kind == "embeddings":
            raise UserError(
                f"position {built_layer.override.position.name!r} in layer_pattern acts on the "
                "embeddings, which are not per layer"
            )
        if (
            config.embedding_norm == "first"
            and built_layer.pattern_index == 0
            and not hasattr(built_layer.layer, "attn_residual")
        ):
            raise UserError(
                "embedding_norm=first replaces a norm before attention; block "
                f"{built_layer.block!r} has none: set true or false"
            )


def _check_pattern(config: ModelSpec, built_layers: Sequence[BuiltLayer]) -> None:
    """Each part of a pattern entry must be used by a layer with that entry."""
    for index, override in enumerate(config.layer_pattern):
        layers = [built_layer for built_layer in built_layers if built_layer.pattern_index == index]
        of_use = {
            "attention": any(built_layer.has_attention for built_layer in layers),
            "position": any(built_layer.uses_position for built_layer in layers),
        }
        for name, used in of_use.items():
            choice = getattr(override, name)
            if choice is not None and not used:
                raise UserError(
                    f"layer_pattern: block {config.layer_config(index).block.name!r} has no self-attention "
                    f"and ignores {name} {choice.name!r}: remove it"
                )


def _check_attention(config: ModelSpec, built_layers: Sequence[BuiltLayer]) -> None:
    """A non-default common attention must be used by some layer."""
    default = ModelSpec.model_fields["attention"].default
    common = [built_layer for built_layer in built_layers if built_layer.override.attention is None]
    unused = common and not any(built_layer.has_attention for built_layer in common)
    if unused and ATTENTION.check(config.attention) != ATTENTION.check(default):
        blocks = " and ".join(dict.fromkeys(built_layer.block for built_layer in built_layers))
        raise UserError(
            f"no layer uses attention {config.attention.name!r}, since the blocks are {blocks}: remove it"
        )


def _check_position(config: ModelSpec, built_layers: Sequence[BuiltLayer]) -> None:
    """The common position must be used by some layer without its own."""
    if not built_layers or any(built_layer.uses_position for built_layer in built_layers):
        return
    if any(
        built_layer.layer.attn is not None and built_layer.override.attention is None
        for built_layer in built_layers
    ):
        raise UserError(
            f"position {config.position.name!r} acts within attention, but attention "
            f"{config.attention.name!r} does not store it (self.position = position): use none, or one that "
            "is added to the embeddings, such as sinusoidal or learned"
        )
    blocks = " and ".join(dict.fromkeys(built_layer.block for built_layer in built_layers))
    raise UserError(
        f"position {config.position.name!r} acts on self-attention, but blocks {blocks} have none: use "
        "none, or one that is added to the embeddings, such as sinusoidal or learned"
    )
