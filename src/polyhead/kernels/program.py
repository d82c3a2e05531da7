"""Compile the layers of a decoder to a program of kernel instructions (kernels/cpp/step.hpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.attention import PackedAttention
from polyhead.kernels.build_extension import INT64, POINTER
from polyhead.kernels.int_linear import Int8Linear
from polyhead.kernels.linear import NativeLinear
from polyhead.nn.attention.projections import FullQKNorm
from polyhead.nn.block.transformer import Block, ParallelBlock
from polyhead.nn.embedding import Embedding
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward, relu_squared
from polyhead.nn.kv import Window
from polyhead.nn.norm import LayerNorm, NoNorm, RMSNorm
from polyhead.nn.position.absolute import LearnedPosition, SinusoidalPosition
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope
from polyhead.nn.residual import Residual

# the enums of step.hpp and activations.hpp, in the same order
EMBED_OP, NORM_OP, ROUND_OP, ANGLES_OP, HEADS_OP, PRODUCT_OP, ATTEND_OP, CHOOSE_OP = range(8)
LAYER, RMS = range(2)
FP32, BF16, INT8, INT4 = range(4)
REPLACE, ADD, MULTIPLY = range(3)
NO_ACTIVATION, RELU, LEAKY, GELU, GELU_TANH, SILU, SIGMOID, TANH, SQUARE, ROUND_BF16 = range(10)
NO_OFFSET = -1
LOGITS_PER_PART, PART_FLOATS = 4096, 4  # of the parts of logits.hpp
_PRECISIONS = {"int8": INT8, "int4": INT4}

_ACTIVATION_CODES: dict[Any, int] = {
    torch.relu: RELU, F.silu: SILU, torch.sigmoid: SIGMOID, torch.tanh: TANH, relu_squared: SQUARE,
}  # fmt: skip
_INT_FIELDS = "what in_ out with_ width inner way activation joins heads kv_heads dim v_dim layer source mask"

PendingLinear = tuple[nn.Module, int]  # a linear layer that is still to be added, and the offset of its input


class Instruction(ctypes.Structure):
    """The struct of the same layout in step.hpp."""

    _fields_ = [
        *((name, INT64) for name in _INT_FIELDS.split()),
        *((name, POINTER) for name in ("weight", "bias", "sizes", "offsets")),
        *((name, ctypes.c_double) for name in ("number", "bound")),
    ]


class UnsupportedLayerError(Exception):
    """A module that cannot be compiled to these instructions."""


class ProgramBuilder:
    """Builds the instructions of a program, the layout of its buffer, and the constants that it refers to.

    Buffer rows with the same name and width share one offset; the earlier contents are no longer needed.
    Offsets are in numbers per token.
    """

    def __init__(self, d_model: int) -> None:
        self.instructions: list[Instruction] = []
        self.constants: list[Tensor] = []
        self.attentions: list[PackedAttention] = []
        self.windows: list[Window | None] = [None]  # one mask each
        self.biases: list[Position] = []  # position schemes that add a bias to scores
        self.width = 0  # numbers of all rows of a token
        self._offsets: dict[tuple[object, int], int] = {}
        self.x = self.buffer_offset("x", d_model)  # the residual stream

    def buffer_offset(self, name: object, width: int) -> int:
        """Offset of the buffer rows with this name and width; allocates them on first use."""
        if (name, width) not in self._offsets:
            self._offsets[name, width] = self.width
            self.width += width
        return self._offsets[name, width]

    def add_layer(self, block: nn.Module, layer_idx: int) -> None:
        """Add a layer of the decoder; it reads and writes ``x``."""
        if type(block) not in (Block, ParallelBlock):
            raise UnsupportedLayerError
        assert isinstance(block, Block)
        parts = [(block.attn_residual, partial(self.add_attention, block.attn, layer_idx))]
        if block.cross is not None:
            parts.append(
                (block.cross_residual, partial(self.add_attention, block.cross, layer_idx, source=True))
            )
        parts.append((block.ffn_residual, partial(self.add_feed_forward, block.ffn)))
        if type(block) is Block:
            for residual, part in parts:
                self.add_residual(residual, part(self.add_pre_norm(residual)))
            return
        if any(isinstance(residual.norm, NoNorm) for residual, _ in parts):
            # without a norm a sublayer would read x after the other ones were added to it
            raise UnsupportedLayerError
        inputs = [self.add_pre_norm(residual, i) for i, (residual, _) in enumerate(parts)]
        for h, (residual, part) in zip(inputs, parts, strict=True):
            self.add_residual(residual, part(h))

    def add_pre_norm(self, residual: Residual, name: object = "normed") -> int:
        """Add the pre-norm of a sublayer, if it has one; return the offset of the sublayer's input."""
        if not residual.norm_first or isinstance(residual.norm, NoNorm):
            return self.x
        return self.add_norm(residual.norm, self.x, name)

    def add_residual(self, residual: Residual, pending: PendingLinear) -> None:
        """Add the last product of a sublayer, its sum with ``x``, and a sandwich norm or post-norm."""
        layer, h = pending
        if residual.scale != 1 or residual.skip != 1:
            raise UnsupportedLayerError
        if residual.sandwich_norm is None or isinstance(residual.sandwich_norm, NoNorm):
            self.add_linear(layer, self.add_rounding(layer, h), self.x, combine=ADD, operand=self.x)
        else:
            branch = self.buffer_offset("branch", _require_linear(layer).out_features)
            self.add_linear(layer, self.add_rounding(layer, h), branch)
            self.add_norm(residual.sandwich_norm, branch, "x", self.x)
        if not residual.norm_first and not isinstance(residual.norm, NoNorm):
            self.add_norm(residual.norm, self.x, "x")

    def add_norm(self, norm: nn.Module, x: int, name: object, addend: int = NO_OFFSET) -> int:
        """Add the norm of rows x, plus the rows at ``addend``; return the offset of the result."""
        weight: Tensor
        if type(norm) is LayerNorm:
            norm_kind, weight, bias = LAYER, norm.weight, norm.bias
        elif type(norm) is RMSNorm:
            norm_kind, weight, bias = RMS, _norm_weight(norm), None
        else:
            raise UnsupportedLayerError
        n = len(weight)
        out = self.buffer_offset(name, n)
        self.emit(
            NORM_OP, x, out, with_=addend, width=n, inner=n, way=norm_kind,
            weight=self.store_constant(weight),
            bias=None if bias is None else self.store_constant(bias), number=norm.eps,
        )  # fmt: skip
        return out

    def add_attention(self, attn: object, layer_idx: int, h: int, *, source: bool = False) -> PendingLinear:
        """Add projections and attention of input h; return the pending output projection.

        With ``source`` (cross-attention) only queries are projected; keys and values of the source are given.
        """
        if type(attn) is not PackedAttention:
            raise UnsupportedLayerError
        self.attentions.append(attn)
        D, Dv = attn.head_dim, attn.v_head_dim
        heads, kv_heads = attn.widths[0] // D, attn.widths[1] // D
        width = attn.widths[0] if source else attn.qkv.out_features
        qkv_offset = self.buffer_offset("heads", width)
        self.add_linear(attn.qkv, self.add_rounding(attn.qkv, h), qkv_offset, width)
        angles, rotary_dim, interleaved = self.add_rope_angles(attn.position)
        common_fields = {"heads": heads, "dim": D, "v_dim": Dv, "layer": layer_idx, "source": int(source)}
        has_qk_norm, is_full_norm = isinstance(attn.q_norm, RMSNorm), isinstance(attn.q_norm, FullQKNorm)
        if not has_qk_norm and not isinstance(attn.q_norm, nn.Identity):
            raise UnsupportedLayerError
        if not source or has_qk_norm or rotary_dim:
            norm_weights = [
                self.store_constant(_norm_weight(norm)) if has_qk_norm else None
                for norm in (attn.q_norm, attn.k_norm)
            ]
            self.emit(
                HEADS_OP, qkv_offset, qkv_offset, with_=angles, width=width, inner=rotary_dim,
                way=interleaved, kv_heads=0 if source else kv_heads,
                weight=norm_weights[0], bias=norm_weights[1], number=attn.q_norm.eps if has_qk_norm else 0.0,
                    joins=is_full_norm, **common_fields,
            )  # fmt: skip
        window = None if source else attn.window
        if window not in self.windows:
            self.windows.append(window)
        if attn.position.kind == "scores" and attn.position not in self.biases:
            self.biases.append(attn.position)
        bias = self.biases.index(attn.position) if attn.position in self.biases else NO_OFFSET
        out = self.buffer_offset("merged", heads * Dv)
        self.emit(
            ATTEND_OP, qkv_offset, out, with_=bias, width=heads * Dv, inner=width, kv_heads=kv_heads,
            mask=self.windows.index(window),
            number=D**-0.5 if attn.scale is None else attn.scale, bound=attn.softcap or 0.0, **common_fields,
        )  # fmt: skip
        return attn.o_proj, out

    def add_rope_angles(self, position: Position) -> tuple[int, int, bool]:
        """Offset of the rotation angles, number of rotated features, and whether pairs are interleaved."""
        if type(position) is Rope:
            offset = self._offsets.get((position, position.rotary_dim))
            if offset is None:
                offset = self.buffer_offset(position, position.rotary_dim)
                self.emit(
                    ANGLES_OP,
                    0,
                    offset,
                    width=position.rotary_dim,
                    weight=self.store_constant(position.inv_freq),
                    number=position.attention_factor,
                )
            return offset, position.rotary_dim, position.layout == "interleaved"
        if type(position).rotate is not Position.rotate:
            raise UnsupportedLayerError
        return NO_OFFSET, 0, False

    def add_feed_forward(self, ffn: nn.Module, h: int) -> PendingLinear:
        """Add a feed-forward layer without its last product, which is returned as pending."""
        if type(ffn) is FeedForward:
            inner = self.buffer_offset("inner", _require_linear(ffn.up_proj).out_features)
            self.add_linear(ffn.up_proj, self.add_rounding(ffn.up_proj, h), inner, activation=ffn.activation)
            return ffn.down_proj, inner
        if type(ffn) is not GatedFeedForward:
            raise UnsupportedLayerError
        gate, inner = (
            self.buffer_offset(name, _require_linear(ffn.up_proj).out_features) for name in ("gate", "inner")
        )
        rounded = self.add_rounding(ffn.up_proj, h)
        self.add_linear(ffn.gate_proj, rounded, gate, activation=ffn.activation)
        self.add_linear(ffn.up_proj, rounded, inner, combine=MULTIPLY, operand=gate)
        return ffn.down_proj, inner

    def add_rounding(self, layer: nn.Module, x: int) -> int:
        """Add the rounding of rows x to the input dtype of a layer; return the offset of the result."""
        layer, precision = _require_linear(layer), _precision(layer)
        if precision == FP32:
            return x
        out = self.buffer_offset("rounded", layer.steps + (precision >= INT8))
        self.emit(ROUND_OP, x, out, width=layer.steps, inner=layer.in_features, way=precision)
        return out

    def add_embedding(self, embedding: Embedding) -> Tensor | None:
        """Add the embedding of a token as ``x``; return the table of positions that is added to it."""
        token, position, norm = embedding.token.weight, embedding.position, embedding.norm
        table = _position_table(position)
        extra_parts = embedding.token_proj, embedding.segment, embedding.proj
        is_rounded = token.dtype != torch.float32  # a norm's result would be, too
        if any(part is not None for part in extra_parts) or (norm is not None and is_rounded):
            raise UnsupportedLayerError
        self.emit(
            EMBED_OP, 0, self.x, width=token.size(1), way=BF16 if is_rounded else FP32,
            joins=table is not None and table.dtype == torch.bfloat16, weight=token.data_ptr(),
            number=embedding.scale,
        )  # fmt: skip
        if norm is not None and not isinstance(norm, NoNorm):
            self.add_norm(norm, self.x, "x")
        return table

    def add_choice(self, head: nn.Module, x: int, dtype: torch.dtype) -> None:
        """Add the logits of rows x, rounded to ``dtype``, and the choice of the most likely token."""
        layer = _require_linear(head)
        if dtype != torch.float32 and _precision(layer) != BF16:
            raise UnsupportedLayerError  # the input of an integer product would be rounded first
        logits, V = self.buffer_offset("logits", layer.out_features), layer.out_features
        activation = NO_ACTIVATION if dtype == torch.float32 else ROUND_BF16
        self.add_linear(layer, self.add_rounding(layer, x), logits, activation=activation)
        width = PART_FLOATS * -(-V // LOGITS_PER_PART)
        self.emit(CHOOSE_OP, logits, self.buffer_offset("choice", width), width=width, inner=V)

    def add_linear(
        self,
        layer: nn.Module,
        x: int,
        out: int,
        width: int | None = None,
        *,
        activation: Callable[[Tensor], Tensor] | int | None = None,
        combine: int = REPLACE,
        operand: int = 0,
    ) -> None:
        """Add the first ``width`` outputs of a linear layer, activated, then combined with other rows."""
        layer, precision = _require_linear(layer), _precision(layer)
        kind, slope = (activation, 0.0) if isinstance(activation, int) else activation_code(activation)
        panels, *quantization, bias = layer.pointers
        self.emit(
            PRODUCT_OP, x, out, with_=operand, width=width or layer.out_features, inner=layer.steps,
            way=precision, activation=kind, joins=combine,
            weight=panels, bias=bias, number=slope, **dict(zip(("sizes", "offsets"), quantization,
                strict=False)),
        )  # fmt: skip

    def emit(self, opcode: int, src: int, out: int, **rest: Any) -> None:
        """Append an instruction."""
        self.instructions.append(Instruction(what=opcode, in_=src, out=out, **{"with_": NO_OFFSET, **rest}))

    def store_constant(self, x: Tensor) -> int:
        """Store x in fp32 and return its address, valid as long as the builder lives."""
        self.constants.append(x.detach().float().clone(memory_format=torch.contiguous_format))
        return self.constants[-1].data_ptr()


def compile_stack(layers: Sequence[nn.Module], final_norm: nn.Module | None) -> tuple[ProgramBuilder, int]:
    """Compile a stack of packed layers -> builder, offset of the result; raises UnsupportedLayerError."""
    builder = _builder_for(layers)
    return builder, _add_stack(builder, layers, final_norm)


def compile_greedy(
    embedding: Embedding, layers: Sequence[nn.Module], final_norm: nn.Module | None, head: nn.Module
) -> tuple[ProgramBuilder, Tensor | None]:
    """Compile a whole decoder, from the token to the most likely next one -> builder, table of positions.

    Raises UnsupportedLayerError.
    """
    builder = _builder_for(layers)
    table = builder.add_embedding(embedding)
    features = _add_stack(builder, layers, final_norm)
    builder.add_choice(head, features, embedding.token.weight.dtype)
    return builder, table


def _builder_for(layers: Sequence[Any]) -> ProgramBuilder:
    first_attn = layers[0].attn
    if type(first_attn) is not PackedAttention:
        raise UnsupportedLayerError
    return ProgramBuilder(_require_linear(first_attn.o_proj).out_features)


def _add_stack(builder: ProgramBuilder, layers: Sequence[nn.Module], final_norm: nn.Module | None) -> int:
    """Add layers and the final norm; return the offset of the result."""
    for number, layer in enumerate(layers):
        builder.add_layer(layer, number)
    if final_norm is None or isinstance(final_norm, NoNorm):
        return builder.x
    return builder.add_norm(final_norm, builder.x, "out")


def _position_table(position: Position) -> Tensor | None:
    """The rows that a position scheme adds to embeddings; None if it adds nothing."""
    if type(position) is SinusoidalPosition:
        return position.table
    if type(position) is LearnedPosition:
        return position.weight[position.offset :]
    if type(position).embed is not Position.embed:
        raise UnsupportedLayerError
    return None


def _norm_weight(norm: nn.Module) -> Tensor:
    assert isinstance(norm, RMSNorm)
    return 1 + norm.weight if norm.zero_centered else norm.weight


def _require_linear(layer: nn.Module) -> NativeLinear | Int8Linear:
    if not isinstance(layer, NativeLinear | Int8Linear):
        raise UnsupportedLayerError
    return layer


def _precision(layer: nn.Module) -> int:
    """Precision code of the weights of a linear layer."""
    if isinstance(layer, Int8Linear):
        return _PRECISIONS[layer.dtype]
    return FP32 if _require_linear(layer).dtype == torch.float32 else BF16


def activation_code(activation: Callable[[Tensor], Tensor] | None) -> tuple[int, float]:
    """Code of an activation, and its slope below 0 (leaky ReLU)."""
    if activation is None:
        return NO_ACTIVATION, 0.0
    if type(activation) is nn.GELU:
        return (GELU_TANH if activation.approximate == "tanh" else GELU), 0.0
    if type(activation) is nn.LeakyReLU:
        return LEAKY, activation.negative_slope
    if type(activation) is nn.PReLU and activation.weight.numel() == 1:
        return LEAKY, activation.weight.item()
    if activation not in _ACTIVATION_CODES:
        raise UnsupportedLayerError
    return _ACTIVATION_CODES[activation], 0.0
