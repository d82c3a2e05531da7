"""One layer of a Transformer."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.config import ModelSection, Shape
from polyhead.nn.block.sublayers import cross_attention, residual
from polyhead.nn.kv import Memory
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.registry import ATTENTION, BLOCK, FEED_FORWARD


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory to read, feed-forward; each in its residual.

    A block without cross-attention has none, not one switched off.
    """

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
    def of(cls, config: ModelSection, shape: Shape, position: Position, cross: bool) -> Self:
        """As the config says."""
        own = config.decoder_attention if cross and config.decoder_attention else config.attention
        ffn = FEED_FORWARD.build(config.feed_forward, config.d_model, config.d_ff)
        parts = (ATTENTION.build(own, shape, position), ffn, residual(config), residual(config))
        return cls(*parts, cross_attention(config, shape), residual(config)) if cross else cls(*parts)

    @property
    def state(self) -> tuple[tuple[int, ...], ...] | None:
        """The shapes of what a decoding row keeps, if that is not keys and values."""
        shapes: tuple[tuple[int, ...], ...] | None = self.attn.state  # type: ignore[assignment]
        return shapes

    def remember(self, x: Tensor, pos: Tensor | None) -> Memory:
        """The encoder's output (B, S, C) as this layer will read it at every step."""
        memory: Memory = self.cross.remember(x, pos)  # type: ignore[operator]
        return memory

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        x = self.attn_residual(x, lambda h: self.attn(h, pos, cache), pos)
        if memory is not None:
            x = self.cross_residual(x, lambda h: self.cross(h, pos, memory=memory), pos)
        out: Tensor = self.ffn_residual(x, lambda h: self.ffn(h, pos), pos)
        return out


@BLOCK.register("transformer")
def transformer(config: ModelSection, shape: Shape, position: Position, cross: bool) -> Block:
    """Attention and a feed-forward layer; in a decoder, attention to the source between them.

    Each stands in a residual connection with norm and dropout (``model.norm_first``).

    Equation: x ← x + Attention(x);  x ← x + Attention(x, source);  x ← x + FFN(x)
    Paper: Vaswani et al., 2017, sec. 3.1
    When: the one to beat
    """
    return Block.of(config, shape, position, cross)
