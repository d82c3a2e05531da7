"""Blocks on top of each other, built from a config."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.cache.base import Cache, CacheShape, StateShape
from polyhead.config import ModelConfig
from polyhead.nn.kv import Memory
from polyhead.nn.position.base import Position
from polyhead.registry import NORM, Choice


class Stack(nn.Module):
    """N blocks; where the norm comes first, one more norm closes the stack."""

    def __init__(self, blocks: Sequence[nn.Module], final_norm: nn.Module | None) -> None:
        super().__init__()
        self.layers, self.final_norm = nn.ModuleList(blocks), final_norm

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        memory: Sequence[Memory] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        for i, layer in enumerate(self.layers):
            x = layer(
                x, pos, None if cache is None else cache.layers[i], None if memory is None else memory[i]
            )
        return x if self.final_norm is None else self.final_norm(x, pos)

    def counts_tokens(self) -> bool:
        """Whether some part must be told which tokens are padding, even where none can see them."""
        return any(getattr(part, "counts_tokens", False) for part in self.layers.modules())

    def cache_shape(self, config: ModelConfig, like: Tensor) -> CacheShape:
        """What a cache must hold for these layers; ``like`` says in which precision and where."""
        shape = config.shape(causal=True)
        states: tuple[StateShape | None, ...] = tuple(layer.state for layer in self.layers)  # type: ignore[misc]
        heads = (shape.n_kv_heads, shape.head_dim, shape.v_head_dim)
        attentions = [getattr(layer, "attn", None) for layer in self.layers]  # recurrent blocks have none
        windows = tuple(getattr(attn, "window", None) for attn in attentions)
        schemes = [getattr(attn, "position", None) for attn in attentions]
        distances = any(getattr(scheme, "acts_on", None) == "scores" for scheme in schemes)
        return CacheShape(len(self.layers), *heads, like.dtype, like.device, states, windows, distances)


def build_stack(
    config: ModelConfig, position: Position, n_layers: int, *, causal: bool, cross: bool
) -> Stack:
    """An encoder (neither), a decoder-only stack (causal) or the decoder of an encoder-decoder (causal and cross).

    Layers that share their weights are one module, n times (Dehghani et al., 2018; Lan et al., 2019, sec. 3.1).
    """
    turns = len(config.pattern) or 1
    # layers of one turn share theirs
    positions = [config.position_of(i, position, causal) for i in range(turns)]
    built = 1 if config.share_layers else n_layers
    blocks = [config.at(i).layer(positions[i % turns], causal, cross) for i in range(built)]
    blocks *= n_layers // built
    if config.embedding_norm == "first":
        blocks[0].attn_residual.norm = NORM.build(Choice("none"), config.d_model)
    return Stack(blocks, NORM.build(config.norm, config.d_model) if config.norm_first else None)
