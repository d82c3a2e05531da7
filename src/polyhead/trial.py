"""What does not go together in a config says so when it is read: options, and parts, of which one layer of each kind is built
without memory."""

from __future__ import annotations

from polyhead.config import LayerParts, ModelSection
from polyhead.errors import UserError
from polyhead.registry import ATTENTION, POOLING


def try_together(config: ModelSection) -> None:
    """What is of no use without another option, or to this kind of model, is a UserError."""
    if config.sandwich_norm and not config.norm_first:
        raise UserError("sandwich_norm adds a norm to those of norm_first: give norm_first=true as well")
    if config.embedding_norm == "first" and (not config.norm_first or config.sandwich_norm == "after"):
        raise UserError(
            "embedding_norm=first takes the place of a norm before attention: give norm_first=true as well, "
            "and not sandwich_norm=after"
        )
    if config.share_layers and len(config.pattern) > 1:
        raise UserError(
            f"share_layers gives all layers the weights of the first, and pattern makes layers of {len(config.pattern)} kinds: "
            "leave one out"
        )
    if config.share_layers and config.embedding_norm == "first":
        raise UserError(
            "embedding_norm=first takes a norm from the first layer, and share_layers gives all layers the weights of the first: "
            "give embedding_norm true or false"
        )
    if config.kind != "encoder" and config.generator:
        raise UserError(
            f"generator puts in tokens that an encoder learns to tell; this is kind={config.kind!r}: leave it out"
        )
    if config.kind != "encoder" and not config.head:
        raise UserError(
            f"head=false leaves vectors alone, which are of use from an encoder; this is kind={config.kind!r}"
        )
    if config.generator and config.head:
        raise UserError("head=true scores tokens, which generator does in its place: leave one of them out")
    if config.kind == "encoder-decoder" and config.d_embedding is not None:
        raise UserError(
            "d_embedding gives embeddings a width of their own, which an encoder or a decoder may have; "
            "this is kind='encoder-decoder': leave it out"
        )
    if config.kind != "encoder" and config.head_activation != "gelu":
        raise UserError(
            f"head_activation is of the map below an encoder's scores of the vocabulary; this is kind={config.kind!r}: leave it out"
        )
    if config.head_activation == "none" and (config.generator or config.d_embedding is not None):
        raise UserError(
            "head_activation=none leaves out the map below an encoder's scores, which generator and d_embedding need: "
            "give an activation"
        )
    if config.kind != "encoder" and config.map_bias is not None:
        raise UserError(
            f"map_bias is of the maps between an encoder's layers and its scores; this is kind={config.kind!r}: leave it out"
        )
    if config.kind != "encoder" and config.pooling is not None:
        raise UserError(
            f"pooling makes one vector of a text, which is an encoder's to do; this is kind={config.kind!r}: leave it out"
        )


def try_layers(config: ModelSection) -> None:
    """Build them; what does not go together, or is of no use to any of them, is a UserError."""
    import torch

    from polyhead.undrawn import Undrawn

    sides = [(config.kind == "decoder", False), *([(True, True)] if config.kind == "encoder-decoder" else [])]
    turns = config.pattern or (LayerParts(),)
    deaf = False  # whether a layer attends without the common position
    used, read = False, all(parts.attention for parts in turns)
    blocks, there = dict[str, None](), dict[str, None]()
    idle = {
        (i, name) for i, parts in enumerate(turns) for name, choice in parts if choice and name != "block"
    }
    with torch.device("meta"), Undrawn():
        for causal, cross in sides:
            common = config.common_position(causal)
            for i, parts in enumerate(turns):
                position, block = config.position_of(i, common, causal), config.at(i).block_of(cross).name
                layer = config.at(i).layer(position, causal, cross)
                acts = position.acts_on in ("nothing", "embeddings") or position in layer.modules()
                if parts.position is None:
                    blocks[block], used = None, used or acts
                    deaf = deaf or (hasattr(layer, "attn") and parts.attention is None)
                elif position.acts_on == "embeddings":
                    raise UserError(
                        f"position {parts.position.name!r} in pattern acts on the embeddings, which no layer has alone"
                    )
                attends = hasattr(layer, "attn") or (
                    getattr(layer, "cross", None) is not None and config.cross_attention is None
                )
                there[block], read = None, read or (attends and parts.attention is None)
                idle -= {(i, name) for name, of_use in (("position", acts), ("attention", attends)) if of_use}
                if config.embedding_norm == "first" and i == 0 and not hasattr(layer, "attn_residual"):
                    raise UserError(
                        f"embedding_norm=first takes the place of a norm before attention; block {block!r} has none: give true or false"
                    )
        if config.pooling is not None:
            POOLING.build(config.pooling, config)
    for i, name in sorted(idle):
        raise UserError(
            f"pattern: {name} {getattr(turns[i], name).name!r} is of no use to block {config.at(i).block.name!r}, "
            "which has no self-attention: leave it out"
        )
    default = ModelSection.model_fields["attention"].default
    if not read and ATTENTION.check(config.attention) != ATTENTION.check(default):
        raise UserError(
            f"no layer attends by attention {config.attention.name!r}, the blocks being {' and '.join(there)}: leave it out"
        )
    if blocks and not used and deaf:
        raise UserError(
            f"position {config.position.name!r} acts within attention, and attention {config.attention.name!r} does not hold it "
            "(self.position = position): use none, or one that is added to the embeddings, such as sinusoidal or learned"
        )
    if blocks and not used:
        raise UserError(
            f"position {config.position.name!r} acts on self-attention, and blocks {' and '.join(blocks)} have none: "
            "use none, or one that is added to the embeddings, such as sinusoidal or learned"
        )
