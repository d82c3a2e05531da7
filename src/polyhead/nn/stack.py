"""Stacks of blocks, built from a config."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import NORM
from polyhead.nn.cache import Cache, CacheShape, StateShape
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.position.base import Position


class Stack(nn.Module):
    """N blocks; with pre-norm followed by a final norm."""

    def __init__(self, blocks: Sequence[nn.Module], final_norm: nn.Module | None) -> None:
        super().__init__()
        self.layers, self.final_norm = nn.ModuleList(blocks), final_norm

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        memory: Sequence[EncoderMemory] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        for i, layer in enumerate(self.layers):
            x = layer(
                x, pos, None if cache is None else cache.layers[i], None if memory is None else memory[i]
            )
        return x if self.final_norm is None else self.final_norm(x, pos)

    def needs_padding_mask(self) -> bool:
        """Whether some part needs to know which tokens are padding, even where no token attends to them."""
        return any(getattr(part, "needs_padding_mask", False) for part in self.layers.modules())

    def make_cache_shape(self, config: ModelConfig, reference: Tensor) -> CacheShape:
        """The cache shape of these layers, with dtype and device of ``reference``."""
        shape = config.attention_shape(causal=True)
        states: tuple[StateShape | None, ...] = tuple(layer.state for layer in self.layers)  # type: ignore[misc]
        heads = (shape.n_kv_heads, shape.head_dim, shape.v_head_dim)
        attentions = [getattr(layer, "attn", None) for layer in self.layers]  # recurrent blocks have none
        windows = tuple(getattr(attn, "window", None) for attn in attentions)
        schemes = [getattr(attn, "position", None) for attn in attentions]
        distances = any(getattr(scheme, "kind", None) == "scores" for scheme in schemes)
        return CacheShape(
            len(self.layers), *heads, reference.dtype, reference.device, states, windows, distances
        )


def build_stack(
    config: ModelConfig, position: Position, n_layers: int, *, causal: bool, cross: bool
) -> Stack:
    """Build an encoder, a decoder-only stack (``causal``) or an encoder-decoder's decoder (``cross`` too).

    Layers that share their weights are one module, repeated (Dehghani et al., 2018; Lan et al., 2019, sec.
    3.1).
    """
    period = len(config.pattern) or 1
    # layers with the same pattern entry share a position scheme
    positions = [config.build_layer_position(i, position, causal) for i in range(period)]
    n_built = 1 if config.share_layers else n_layers
    blocks = [
        config.layer_config(i).build_layer(positions[i % period], causal, cross) for i in range(n_built)
    ]
    blocks *= n_layers // n_built
    if config.embedding_norm == "first":
        blocks[0].attn_residual.norm = NORM.build(Choice("none"), config.d_model)
    return Stack(blocks, NORM.build(config.norm, config.d_model) if config.norm_first else None)
