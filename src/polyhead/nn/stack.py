"""Blocks on top of each other, built from a config."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.cache.base import Cache
from polyhead.config import ModelConfig
from polyhead.nn.block import Block
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.registry import ATTENTION, FEED_FORWARD, NORM


class Stack(nn.Module):
    """N blocks; where the norm comes first, one more norm closes the stack."""

    def __init__(self, blocks: Sequence[Block], final_norm: nn.Module) -> None:
        super().__init__()
        self.layers, self.final_norm = nn.ModuleList(blocks), final_norm

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        memory: Sequence[KV] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        for i, layer in enumerate(self.layers):
            x = layer(
                x, pos, None if cache is None else cache.layers[i], None if memory is None else memory[i]
            )
        out: Tensor = self.final_norm(x)
        return out


def build_stack(
    config: ModelConfig, position: Position, n_layers: int, *, causal: bool, cross: bool
) -> Stack:
    """An encoder (neither), a decoder-only stack (causal) or the decoder of an encoder-decoder (causal and cross)."""

    def attention(position: Position, causal: bool) -> nn.Module:
        part: nn.Module = ATTENTION.build(
            config.attention, config.d_model, config.n_heads, config.kv_heads, position, causal
        )
        return part

    def residual() -> Residual:
        return Residual(NORM.build(config.norm, config.d_model), config.norm_first, config.dropout)

    def block() -> Block:
        ffn = FEED_FORWARD.build(config.feed_forward, config.d_model, config.d_ff)
        nowhere = Position(config.d_model, config.n_heads, config.head_dim, config.max_len)
        parts = (attention(position, causal), ffn, residual(), residual())
        # the source has its own positions, which say nothing about distance to the target
        return Block(*parts, attention(nowhere, False), residual()) if cross else Block(*parts)

    final_norm = NORM.build(config.norm, config.d_model) if config.norm_first else nn.Identity()
    return Stack([block() for _ in range(n_layers)], final_norm)
