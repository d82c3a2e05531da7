"""A Transformer layer whose sub-layers are applied in parallel."""

from __future__ import annotations

from torch import Tensor

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.registry import BLOCK
from polyhead.nn.block.transformer import Block
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.position.base import Position


class ParallelBlock(Block):
    """A block whose sub-layers all read the same x; their outputs are summed."""

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: EncoderMemory | None = None,
        position: Position | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``position`` is prepared for this forward pass."""
        out = self.attn_residual.compute_branch(x, self.attn, pos, cache, None, position)
        out = out + self.ffn_residual.compute_branch(x, self.ffn, pos)
        if memory is not None:
            out = out + self.cross_residual.compute_branch(x, self.cross, pos, None, memory)
        return x + out


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
