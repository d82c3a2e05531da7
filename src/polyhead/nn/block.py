"""One layer of a Transformer."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.nn.kv import KV
from polyhead.nn.residual import Residual


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

    def forward(
        self, x: Tensor, pos: Tensor | None = None, cache: LayerCache | None = None, memory: KV | None = None
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        x = self.attn_residual(x, lambda h: self.attn(h, pos, cache))
        if memory is not None:
            x = self.cross_residual(x, lambda h: self.cross(h, pos, memory=memory))
        out: Tensor = self.ffn_residual(x, self.ffn)
        return out
