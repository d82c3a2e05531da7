"""A layer of a Transformer whose sub-layers stand side by side."""

from __future__ import annotations

from torch import Tensor

from polyhead.cache.base import LayerCache
from polyhead.config import ModelSection, Shape
from polyhead.errors import UserError
from polyhead.nn.block.transformer import Block
from polyhead.nn.kv import Memory
from polyhead.nn.position.base import Position
from polyhead.registry import BLOCK


class Parallel(Block):
    """The sub-layers of a block, all of which read the same x; what they give is added up."""

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        out = self.attn_residual.branch(x, lambda h: self.attn(h, pos, cache), pos)
        out = out + self.ffn_residual.branch(x, lambda h: self.ffn(h, pos), pos)
        if memory is not None:
            out = out + self.cross_residual.branch(x, lambda h: self.cross(h, pos, memory=memory), pos)
        return x + out


@BLOCK.register("parallel")
def parallel(
    config: ModelSection, shape: Shape, position: Position, cross: bool, *, one_norm: bool = False
) -> Parallel:
    """Attention and the feed-forward layer read the same tokens, and both are added to them.

    The feed-forward layer does not wait for attention, and does not see what it found until the next layer. Each has a
    norm of its own before it, or all have one. In a decoder with a source, attention to that is a third summand. There
    is no order in which norms could stand behind, so it wants ``model.norm_first``.

    Equation: x ← x + Attention(N₁ x) + FFN(N₂ x);  in a decoder with a source + Attention(N₃ x, source)
    Paper: Black et al., 2022 (GPT-NeoX), sec. 2.1; with one norm Wang & Komatsuzaki, 2021 (GPT-J)
    When: to compare with GPT-NeoX and its kin; on wide hardware both can be computed at once
    Recipe: model: {block: parallel, norm_first: true}
    Options:
      one_norm: N₁ is N₂ and N₃, as in GPT-J, Phi-2 and Falcon 7B
    """
    if not config.norm_first or config.sandwich_norm:
        given = "sandwich_norm" if config.norm_first else "norm_first=false"
        raise UserError(
            f"block 'parallel' has one norm before each sub-layer: norm_first=true without sandwich_norm, not {given}"
        )
    block = Parallel.of(config, shape, position, cross)
    if one_norm:
        block.ffn_residual.norm = block.attn_residual.norm
        if cross:
            block.cross_residual.norm = block.attn_residual.norm
    return block
