"""Stacks of blocks, built from a config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from polyhead.config.model import ModelConfig, ModelSpec
from polyhead.core.choice import Choice
from polyhead.core.registry import BLOCK, NORM, POSITION
from polyhead.nn.block.base import Layer, complete_layer
from polyhead.nn.block_mask import make_block_masks
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.position.base import Position
from polyhead.nn.positions import AnyPositions, Positions, has_several_documents
from polyhead.nn.recompute import recompute_in_backward

EncoderOutput = tuple[Tensor, Tensor | None]
"""The output of an encoder and its positions: (B, S, C), (B, S)."""


class StackLayers(nn.ModuleList):
    """The layers of a stack, with the attributes that those of other packages leave out."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__(map(complete_layer, layers))

    def __setitem__(self, index: int, layer: nn.Module) -> None:
        super().__setitem__(index, complete_layer(layer))


class Stack(nn.Module):
    """N blocks; with pre-norm followed by a final norm."""

    def __init__(self, blocks: Sequence[nn.Module], final_norm: nn.Module | None) -> None:
        super().__init__()
        self.layers, self.final_norm = StackLayers(blocks), final_norm
        self.recompute = False  # whether training keeps only the input of each block
        self.has_compiled_layers = False

    def forward(
        self,
        x: Tensor,
        pos: AnyPositions = None,
        cache: Cache | None = None,
        memory: Sequence[EncoderMemory] | None = None,
        source: EncoderOutput | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a decoder reads ``memory``, or projects ``source`` itself.

        The output of each layer is appended to ``states``.
        """
        documents = None if pos is None or cache is not None else self._describe_documents(x, pos)
        pos = pos.pos if isinstance(pos, Positions) else pos
        is_recomputed = self.recompute and cache is None and torch.is_grad_enabled()
        shares_tables = not (self.has_compiled_layers and cache is None)
        prepared: dict[Any, Position] = {}  # by the scheme of the layers that share it
        layer: Any
        for i, layer in enumerate(self.layers):
            layer_memory = None if memory is None else memory[i]
            if is_recomputed:  # its tables and memory are made inside, so that they are not kept either
                inputs = (x, pos, layer_memory, documents, *(source or ()))
                x = recompute_in_backward(layer, _run_layer, layer, *inputs)
            else:
                scheme = None if layer.attn is None else layer.attn.position
                # a compiled layer computes the tables itself: as inputs they would be read from memory
                if scheme is not None and scheme not in prepared and shares_tables:
                    prepared[scheme] = scheme.prepare(pos, x.size(1), x.device)
                layer_memory = layer_memory if source is None else layer.project_kv(*source)
                layer_cache = None if cache is None else cache.layers[i]
                # a graph for each length of a cache would take longer than decoding
                run = layer._call_impl if self.has_compiled_layers and cache is not None else layer
                last = (documents,) if documents is not None and layer.reads_documents else ()
                x = run(x, pos, layer_cache, layer_memory, prepared.get(scheme), *last)
            if states is not None:
                states.append(x)
        return x if self.final_norm is None else self.final_norm(x, pos)

    def _describe_documents(self, x: Tensor, pos: Tensor | Positions) -> Positions:
        """The positions with what layers without a cache need to know of them, found once for all layers."""
        positions = Positions.of(pos)
        if positions.host is None and not self.has_compiled_layers:
            return positions
        several = has_several_documents(positions.pos, positions)
        positions = positions._replace(several_documents=several)
        if not self.has_compiled_layers:
            return positions
        # graphs cannot make block masks
        found = [layer.attn.visibility_in_blocks() for layer in self.blocks if layer.attn is not None]
        in_blocks = [visibility for visibility in found if visibility is not None]
        return positions._replace(block_masks=make_block_masks(x, positions, in_blocks))

    @property
    def blocks(self) -> Sequence[Layer]:
        """The layers with their type, which torch's lists do not keep."""
        return cast(Sequence[Layer], self.layers)

    def compile_layers(self, **options: Any) -> None:
        """Compile each layer by ``torch.compile`` with these options; layers alike share a graph.

        Steps with a cache run as before.
        """
        torch._dynamo.config.allow_rnn = True
        # numbers of a layer are part of its graph: FlexAttention takes no variable for its scale
        torch._dynamo.config.specialize_float = True
        for layer in self.layers:
            layer.compile(**options)
        self.has_compiled_layers = True

    def hidden_states(self, x: Tensor, pos: AnyPositions = None) -> list[Tensor]:
        """The input and the output of every layer, the last one after the final norm: N + 1 of (B, T, C)."""
        states = [x]
        out = self(x, pos, states=states)
        return [*states[:-1], out]

    def needs_padding_mask(self) -> bool:
        """Whether some part needs to know which tokens are padding, even where no token attends to them."""
        return any(getattr(part, "needs_padding_mask", False) for part in self.layers.modules())

    def make_cache_shape(self, config: ModelConfig, reference: Tensor) -> CacheShape:
        """The cache shape of these layers, with dtype and device of ``reference``."""
        shape = config.attention_shape(causal=True)
        heads = (shape.n_kv_heads, shape.head_dim, shape.v_head_dim)
        states = tuple(layer.state for layer in self.blocks)
        attentions = [layer.attn for layer in self.blocks]
        windows = tuple(None if attn is None else attn.window for attn in attentions)
        schemes = [attn.position for attn in attentions if attn is not None]
        distances = any(scheme is not None and scheme.kind == "scores" for scheme in schemes)
        return CacheShape(
            len(self.layers), *heads, reference.dtype, reference.device, states, windows, distances
        )


def recompute_blocks(model: nn.Module, enabled: bool = True) -> None:
    """Make the stacks of a model keep only the inputs of their blocks in training, or all activations."""
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = enabled


def _run_layer(
    layer: Layer,
    x: Tensor,
    pos: Tensor | None,
    memory: EncoderMemory | None,
    documents: Positions | None,
    *source: Any,
) -> Tensor:
    """A layer without a cache, with its own position tables and, of a ``source``, its own memory.

    Nothing is shared with other layers, so nothing but the inputs has to be kept to run it again.
    """
    scheme = None if layer.attn is None else layer.attn.position
    prepared = None if scheme is None else scheme.prepare(pos, x.size(1), x.device)
    layer_memory = layer.project_kv(*source) if source else memory
    last = (documents,) if documents is not None and layer.reads_documents else ()
    return layer(x, pos, None, layer_memory, prepared, *last)


def build_stack(
    config: ModelConfig, position: Position, n_layers: int, *, causal: bool, cross: bool
) -> Stack:
    """Build an encoder, a decoder-only stack (``causal``) or an encoder-decoder's decoder (``cross`` too).

    Layers that share their weights are one module, repeated (Dehghani et al., 2018; Lan et al., 2019, sec.
    3.1).
    """
    period = len(config.layer_pattern) or 1
    # layers with the same pattern entry share a position scheme
    positions = [build_layer_position(config, i, position, causal) for i in range(period)]
    n_built = 1 if config.share_layers else n_layers
    blocks = [build_layer(config, i, positions[i % period], causal, cross) for i in range(n_built)]
    blocks *= n_layers // n_built
    if config.embedding_norm == "first":
        blocks[0].attn_residual.norm = NORM.build(Choice("none"), config.d_model)
    return Stack(blocks, NORM.build(config.norm, config.d_model) if config.norm_first else None)


def build_layer(config: ModelSpec, layer: int, position: Position, causal: bool, cross: bool) -> Any:
    """Build a layer of a stack, with the block and attention of its pattern entry."""
    config = config.layer_config(layer)
    shape = config.attention_shape(causal)
    return complete_layer(BLOCK.build(config.block_choice(cross), config, shape, position, cross))


def build_layer_position(config: ModelSpec, layer: int, common_position: Position, causal: bool) -> Position:
    """The position scheme of a layer: that of its pattern entry, else the common one."""
    choice = config.layer_override(layer).position
    return common_position if choice is None else POSITION.build(choice, config.attention_shape(causal))


def build_common_position(config: ModelSpec, causal: bool) -> Position:
    """Build the position scheme of the embeddings, in their width, or of all layers without their own."""
    shape = config.attention_shape(causal)
    position: Position = POSITION.build(config.position, shape)
    if position.kind != "embeddings" or config.position_width == config.d_model:
        return position
    return POSITION.build(config.position, shape._replace(d_model=config.position_width))
