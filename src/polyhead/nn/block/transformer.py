"""Layers of a Transformer: sub-layers in sequence, or attention and feed-forward in parallel."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, RESIDUAL
from polyhead.nn.block.base import AttentionPart
from polyhead.nn.cache import LayerCache, StateShape
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions
from polyhead.nn.residual import Residual
from polyhead.nn.shard_plan import ShardPlan


def build_residual(config: ModelSpec, cross: bool) -> Residual:
    """A residual connection with its own norms, placed as configured, of a decoder with ``cross``."""
    sandwich_norm = NORM.build(config.norm, config.d_model) if config.sandwich_norm else None
    norm = Choice("none") if config.sandwich_norm == "after" else config.norm
    norm_module = NORM.build(norm, config.d_model)
    factors = RESIDUAL.build(config.residual, config, cross)
    return Residual(
        norm_module, config.norm_first, config.dropout, sandwich_norm, config.residual_scale, factors
    )


def build_cross_attention(config: ModelSpec, shape: AttentionShape) -> AttentionPart:
    """Attention of a decoder to the source, without positions: distances to the source mean nothing."""
    source_shape = shape._replace(causal=False, kv_width=config.source_width)
    attention: AttentionPart = ATTENTION.build(
        config.cross_attention or config.attention, source_shape, Position(source_shape)
    )
    return attention


def reject_self_attention(config: ModelSpec, name: str, cross: bool) -> None:
    """Raise a UserError if decoder_attention is set for a block without self-attention."""
    if cross and config.decoder_attention is not None:
        raise UserError(
            f"decoder_attention is self-attention, which a decoder of block {name!r} does not have; for "
            "attention to the source set cross_attention"
        )


class Block(nn.Module):
    """Self-attention, cross-attention if there is a source, and feed-forward, each in a residual.

    A block without cross-attention has no module for it.
    """

    shard_plan = ShardPlan(parts=("attn", "cross", "ffn"))
    reads_documents = True

    def __init__(
        self,
        attn: AttentionPart,
        ffn: nn.Module,
        attn_residual: Residual,
        ffn_residual: Residual,
        cross: AttentionPart | None = None,
        cross_residual: Residual | None = None,
    ) -> None:
        super().__init__()
        self.attn, self.attn_residual, self.cross = attn, attn_residual, cross
        if cross_residual is not None:
            self.cross_residual = cross_residual
        self.ffn, self.ffn_residual = ffn, ffn_residual

    @classmethod
    def from_config(cls, config: ModelSpec, shape: AttentionShape, position: Position, cross: bool) -> Self:
        """Build from a config."""
        attention = config.decoder_attention if cross and config.decoder_attention else config.attention
        ffn = FEED_FORWARD.build(config.feed_forward, config.d_model, config.d_ff)
        parts = (
            ATTENTION.build(attention, shape, position),
            ffn,
            build_residual(config, cross),
            build_residual(config, cross),
        )
        return (
            cls(*parts, build_cross_attention(config, shape), build_residual(config, cross))
            if cross
            else cls(*parts)
        )

    @property
    def state(self) -> StateShape | None:
        """The state shapes of a decoding row; None if the cache holds keys and values."""
        return self.attn.state

    def project_kv(self, x: Tensor, pos: Tensor | None) -> EncoderMemory:
        """The encoder's output (B, S, C) as this layer reads it at every step."""
        assert self.cross is not None, "only a decoder reads a source"
        return self.cross.project_kv(x, pos)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: EncoderMemory | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``position`` is prepared for this forward pass."""
        last = (documents,) if documents is not None and self.attn.reads_documents else ()
        x = self.attn_residual(x, self.attn, pos, cache, None, position, *last)
        if memory is not None:
            x = self.cross_residual(x, self.cross, pos, None, memory)
        out: Tensor = self.ffn_residual(x, self.ffn, pos)
        return out


@BLOCK.register("transformer")
def transformer_block(config: ModelSpec, shape: AttentionShape, position: Position, cross: bool) -> Block:
    """Attention and a feed-forward layer; in a decoder, attention to the source between them.

    Each is in a residual connection with norm and dropout (``model.norm_first``).

    Equation: x ← x + Attention(x);  x ← x + Attention(x, source);  x ← x + FFN(x)
    Paper: Vaswani et al., 2017, sec. 3.1
    When: the standard
    """
    return Block.from_config(config, shape, position, cross)


class ParallelBlock(Block):
    """A block whose sub-layers all read the same x; their outputs are summed."""

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: EncoderMemory | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``position`` is prepared for this forward pass."""
        last = (documents,) if documents is not None and self.attn.reads_documents else ()
        out = self.attn_residual.compute_branch(x, self.attn, pos, cache, None, position, *last)
        out = out + self.ffn_residual.compute_branch(x, self.ffn, pos)
        if memory is not None and self.cross is not None:
            out = out + self.cross_residual.compute_branch(x, self.cross, pos, None, memory)
        return self.attn_residual.add(x, out)


@BLOCK.register("parallel")
def parallel_block(
    config: ModelSpec, shape: AttentionShape, position: Position, cross: bool, *, one_norm: bool = False
) -> ParallelBlock:
    """Attention and the feed-forward layer read the same input, and both outputs are added to it.

    The feed-forward layer does not depend on attention in the same layer. Each has its own norm before it, or
    all share one. In a decoder with a source, cross-attention is a third summand. Post-norm is not defined
    for parallel sub-layers, so it requires ``model.norm_first``.

    Equation: x ← x + Attention(N₁ x) + FFN(N₂ x);  in a decoder with a source + Attention(N₃ x, source)
    Paper: Black et al., 2022 (GPT-NeoX), sec. 2.1; with one norm Wang & Komatsuzaki, 2021 (GPT-J)
    When: to match GPT-NeoX and similar models; on wide hardware both can be computed at once
    Recipe: model: {block: parallel, norm_first: true}
    Options:
      one_norm: N₁ is N₂ and N₃, as in GPT-J, Phi-2 and Falcon 7B
    """
    if not config.norm_first or config.sandwich_norm:
        setting = "sandwich_norm" if config.norm_first else "norm_first=false"
        raise UserError(f"block 'parallel' requires norm_first=true without sandwich_norm, not {setting}")
    block = ParallelBlock.from_config(config, shape, position, cross)
    if one_norm:
        block.ffn_residual.norm = block.attn_residual.norm
        if cross:
            block.cross_residual.norm = block.attn_residual.norm
    return block
