"""One layer of a Transformer."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD
from polyhead.nn.block.builders import build_cross_attention, build_residual
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.nn.tensor_split import TensorSplit


class Block(nn.Module):
    """Self-attention, cross-attention if there is a source, and feed-forward, each in a residual.

    A block without cross-attention has no module for it.
    """

    tensor_split = TensorSplit(parts=("attn", "cross", "ffn"))

    def __init__(
        self,
        attn: nn.Module,
        ffn: nn.Module,
        attn_residual: Residual,
        ffn_residual: Residual,
        cross: nn.Module | None = None,
        cross_residual: Residual | None = None,
    ) -> None:
        super().__init__()
        self.attn, self.attn_residual = attn, attn_residual
        if cross is not None:
            assert cross_residual is not None
            self.cross, self.cross_residual = cross, cross_residual
        self.ffn, self.ffn_residual = ffn, ffn_residual

    @classmethod
    def from_config(cls, config: ModelSpec, shape: AttentionShape, position: Position, cross: bool) -> Self:
        """Build from a config."""
        attention = config.decoder_attention if cross and config.decoder_attention else config.attention
        ffn = FEED_FORWARD.build(config.feed_forward, config.d_model, config.d_ff)
        parts = (
            ATTENTION.build(attention, shape, position),
            ffn,
            build_residual(config),
            build_residual(config),
        )
        return (
            cls(*parts, build_cross_attention(config, shape), build_residual(config))
            if cross
            else cls(*parts)
        )

    @property
    def state(self) -> tuple[tuple[int, ...], ...] | None:
        """The state shapes of a decoding row; None if the cache holds keys and values."""
        shapes: tuple[tuple[int, ...], ...] | None = self.attn.state  # type: ignore[assignment]
        return shapes

    def project_kv(self, x: Tensor, pos: Tensor | None) -> EncoderMemory:
        """The encoder's output (B, S, C) as this layer reads it at every step."""
        memory: EncoderMemory = self.cross.project_kv(x, pos)  # type: ignore[operator]
        return memory

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: EncoderMemory | None = None,
        position: Position | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``position`` is prepared for this forward pass."""
        x = self.attn_residual(x, self.attn, pos, cache, None, position)
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
