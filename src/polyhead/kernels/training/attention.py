"""Softmax attention of training in one kernel forward and one backward, on the layout of the projections."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, load_kernels
from polyhead.kernels.training.blocks import (
    LINEAR_RESIDUAL_GRADIENT,
    NORM_LINEAR,
    NORM_LINEAR_GRADIENT,
    BlockInput,
    run_fastest,
)
from polyhead.kernels.training.elementwise import Drop, linear_residual
from polyhead.kernels.training.residual import (
    FusedSublayer,
    Gradients,
    WeightCopies,
    copy_weights,
    is_fusable,
)
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.cache import LayerCache
from polyhead.nn.device import product_dtype
from polyhead.nn.kv import KV, WeightsHook, attention_mask
from polyhead.nn.position.base import Position
from polyhead.nn.position.relative import Alibi
from polyhead.nn.position.rope import Rope
from polyhead.nn.positions import Positions
from polyhead.nn.residual import Residual

LANES = 16  # head dimensions must be multiples of this
MAX_HEAD_DIM = 1024


class _Strides(ctypes.Structure):
    _fields_ = [("row", INT64), ("token", INT64), ("head", INT64)]


_TENSORS = ["q", "k", "v", "out", "grad", "dq", "dk", "dv"]

_SUMS = ["dq_sums", "dk_sums", "dv_sums"]


class _Sizes(ctypes.Structure):
    """TrainSizes of train_attention.hpp."""

    _fields_ = [
        *((name, INT64) for name in ["rows", "heads", "group", "queries", "keys", "dim", "v_dim"]),
        *((name, _Strides) for name in [*_TENSORS, "mask", "bias"]),
        *((name, INT64) for name in ["causal", "rotary", "interleaved"]),
        ("angle", _Strides),
        ("scale", ctypes.c_double),
    ]


class _Pointers(ctypes.Structure):
    """TrainTensors of train_attention.hpp."""

    _fields_ = [(name, POINTER) for name in [*_TENSORS, "log_sums", "mask", "bias", "cos", "sin", *_SUMS]]


def attention_kernels() -> dict[torch.dtype, Any]:
    """The kernel for each data type of queries, keys and values; none without a compiler."""
    return _declare_arguments(load_kernels())


@cache
def _declare_arguments(library: ctypes.CDLL | None) -> dict[torch.dtype, Any]:
    if library is None:
        return {}
    kernels = {dtype: getattr(library, f"train_attention_{suffix}") for dtype, suffix in DTYPE_SUFFIX.items()}
    for kernel in kernels.values():
        kernel.argtypes = [ctypes.POINTER(_Pointers), ctypes.POINTER(_Sizes), INT64]
    return kernels


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes queries (B, T, H, D), keys (B, S, K, D) and values (B, S, K, Dv)."""
    return (
        q.device.type == k.device.type == v.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype
        and q.dtype in attention_kernels()
        and q.size(0) == k.size(0)
        and 0 < q.size(3) <= MAX_HEAD_DIM
        and 0 < v.size(3) <= MAX_HEAD_DIM
        and q.size(3) % LANES == v.size(3) % LANES == 0
        and min(q.numel(), k.numel()) > 0
    )


class AttentionCall(NamedTuple):
    """What a call of the kernel takes besides queries, keys and values."""

    mask: Tensor | None = None  # (1|B, 1|H, 1|T, S) bool, True where a query sees a key
    bias: Tensor | None = None  # (1|B, 1|H, 1|T, S) fp32, added to the scores
    causal: bool = False  # query i sees only keys 0..i
    scale: float | None = None  # above 0; 1 / √D by default
    cos: Tensor | None = None  # of the angles by which queries and keys are rotated: (1|B, T, width / 2) fp32
    sin: Tensor | None = None
    is_interleaved: bool = False  # rotated pairs are features (2j, 2j + 1), else (j, j + width / 2)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None = None,
        log_sums: Tensor | None = None,
        gradients: Sequence[Tensor] = (),
        sums: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor]:
        """Output (B, T, H, Dv), and the logsumexp of each query's scores in base 2: (B, H, T).

        From these and the first of ``gradients``, that of the output, the other three are computed, those of
        q, k and v, with their ``sums`` over tokens in fp32 if given: (B, H, D), (B, K, D), (B, K, Dv).
        """
        (B, T, H, D), (_, S, K, _) = q.shape, k.shape
        if out is None or log_sums is None:
            out, log_sums = q.new_empty(B, T, H, v.size(3)), q.new_empty(B, H, T, dtype=torch.float32)
        sizes, pointers = _Sizes(B, K, H // K, T, S, D, v.size(3)), _Pointers()
        for name, x in zip(_TENSORS, (q, k, v, out, *gradients), strict=False):
            assert x.stride(3) == 1 and x.dtype == q.dtype, f"{name}: {x.stride()} of {x.dtype}"
            setattr(pointers, name, x.data_ptr())
            setattr(sizes, name, _Strides(*x.stride()[:3]))
        pointers.log_sums = log_sums.data_ptr()
        for name, total in zip(_SUMS, sums, strict=False):
            setattr(pointers, name, total.data_ptr())
        for name, scores in (("mask", self.mask), ("bias", self.bias)):
            if scores is not None:
                assert scores.size(3) == S and scores.stride(3) == 1, f"{name}: {scores.shape}"
                row, head, query = (
                    step * (n > 1) for n, step in zip(scores.shape[:3], scores.stride()[:3], strict=True)
                )
                setattr(pointers, name, scores.data_ptr())
                setattr(sizes, name, _Strides(row, query, head))
        if self.cos is not None and self.sin is not None:
            assert self.cos.stride() == self.sin.stride() and self.cos.stride(2) == 1
            row, token, _ = self.cos.stride()
            sizes.rotary, sizes.interleaved = 2 * self.cos.size(2), self.is_interleaved
            sizes.angle = _Strides(row * (len(self.cos) > 1), token, 0)
            pointers.cos, pointers.sin = self.cos.data_ptr(), self.sin.data_ptr()
        sizes.causal, sizes.scale = self.causal, D**-0.5 if self.scale is None else self.scale
        attention_kernels()[q.dtype](pointers, sizes, bool(gradients))
        return out, log_sums


class AttentionFunction(torch.autograd.Function):
    """(B, T, H, D), (B, S, K, D), (B, S, K, Dv), a call -> (B, T, H, Dv), with gradients of q, k and v."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        out, log_sums = call.run(q, k, v)
        ctx.call = call._replace(mask=None, bias=None, cos=None, sin=None)
        ctx.save_for_backward(log_sums, q, k, v, out, call.mask, call.bias, call.cos, call.sin)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_sums, q, k, v, out, mask, bias, cos, sin = ctx.saved_tensors
        grads = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        call = ctx.call._replace(mask=mask, bias=bias, cos=cos, sin=sin)
        call.run(q, k, v, out, log_sums, (grad, *grads))
        return *grads, None


def fuse_attend(
    copies: object,
    q: Tensor,
    kv: KV,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    value_bias: Callable[[Tensor], Tensor | None] | None = None,
    hooks: Sequence[WeightsHook] = (),
) -> Tensor | None:
    """``nn.kv.attend`` in the kernel: (B, H, T, D) over kv -> (B, H, T, Dv); None if it does not apply."""
    needs_weights = bool(hooks) or value_bias is not None or softcap is not None or dropout > 0
    if needs_weights or kv.log_count is not None or (bias is not None and bias.requires_grad):
        return None
    if scale is not None and scale <= 0:
        return None
    dtype = product_dtype(q)
    heads, keys, values = (x.to(dtype).transpose(1, 2) for x in (q, kv.k, kv.v))
    if not can_attend(heads, keys, values):
        return None
    if mask is not None and 1 < mask.size(1) < q.size(1):  # of key heads
        mask = mask.repeat_interleave(q.size(1) // mask.size(1), 1)
    call = AttentionCall(
        None if mask is None else mask.contiguous(),
        None if bias is None else bias.float().contiguous(),
        causal and mask is None,
        scale,
    )
    out: Tensor = AttentionFunction.apply(heads, keys, values, call)
    return out.transpose(1, 2)


def fuse_attention(
    copies: WeightCopies,
    residual: Residual,
    x: Tensor,
    layer: Attention,
    pos: Tensor | None = None,
    cache: LayerCache | None = None,
    memory: KV | None = None,
    position: Position | None = None,
    documents: Positions | None = None,
) -> FusedSublayer | None:
    """Attention to the input itself or to a memory, without a cache."""
    position = layer.position if position is None else position
    inputs = [layer.q_proj] if memory is not None else [layer.q_proj, layer.k_proj, layer.v_proj]
    if cache is not None or not _is_supported(layer, position, inputs):
        return None
    schemes = [] if position.kind == "embeddings" else [layer.position]  # those act elsewhere
    if not is_fusable(x, residual, layer, *schemes, *inputs, layer.o_proj):
        return None
    in_weight = copy_weights(copies, *(part.weight for part in inputs))
    if memory is not None and not (
        type(memory) is KV
        and memory.log_count is None
        and len(memory.k) == len(x)
        and all(part.dtype == in_weight.dtype and part.stride(3) == 1 for part in (memory.k, memory.v))
    ):
        return None
    form = AttentionForm(
        _describe_call(x, layer, pos, memory, position, documents),
        x.shape[:2],
        [len(part.weight) for part in inputs],
        (layer.head_dim, layer.head_dim, layer.v_head_dim)[: len(inputs)],
        layer.q_proj.bias is not None,
        in_weight,
        copy_weights(copies, layer.o_proj.weight),
        Drop.draw(residual.dropout, (x.numel() // x.size(-1), x.size(-1)), residual.scale),
    )
    k, v = (None, None) if memory is None else (memory.k, memory.v)
    return FusedSublayer(form, in_weight.dtype, inputs, layer.o_proj, (k, v))


def _is_supported(layer: Attention, position: Position, inputs: list[nn.Linear]) -> bool:
    """Whether the kernel computes this attention, without weights that others read and norms of heads."""
    needs_weights = bool(layer.weights_hooks) or (layer.training and layer.dropout > 0)
    # of the schemes that act on heads or scores these have a form without gradient
    has_known_position = position.kind in ("nothing", "embeddings") or type(position) in (Rope, Alibi)
    return (
        not needs_weights
        and has_known_position
        and layer.softcap is None
        and layer.gather_kv is None
        and (layer.scale is None or layer.scale > 0)
        and type(layer.q_norm) is type(layer.k_norm) is nn.Identity
        and len({*inputs}) == len(inputs)
        and layer.q_proj.weight.numel() > 0  # else there are no projections
        and len({part.bias is None for part in inputs}) == 1
        and all(n % LANES == 0 and n <= MAX_HEAD_DIM for n in (layer.head_dim, layer.v_head_dim))
    )


def _describe_call(
    x: Tensor,
    layer: Attention,
    pos: Tensor | None,
    memory: KV | None,
    position: Position,
    documents: Positions | None,
) -> AttentionCall:
    """The visible keys, biases and rotations."""
    length, heads = x.size(1), layer.q_proj.weight.size(0) // layer.head_dim
    own_tokens = x.new_empty(1, 1, length, 0)
    kv = KV(own_tokens, own_tokens, None if pos is None else pos[:, None]) if memory is None else memory
    window = layer.window if memory is None else None
    mask = attention_mask(pos, kv, length, layer.causal, window, memory is None, documents)
    call = AttentionCall(
        None if mask is None else mask.contiguous(), causal=layer.causal and mask is None, scale=layer.scale
    )
    if isinstance(position, Alibi):
        bias = position.bias(x.new_empty(1, heads, length, 0), kv, pos)
        return call._replace(bias=bias.float().contiguous())
    if isinstance(position, Rope):
        tables = position if heads in position.tables else position.prepare(pos, length, x.device, (heads,))
        cos, sin = (angles[:, :, 0] for angles in tables.tables[heads])  # all heads have the same
        return call._replace(cos=cos, sin=sin, is_interleaved=position.layout == "interleaved")
    return call


class AttentionForm(NamedTuple):
    """What attention computes with, besides its input and the keys and values of a memory."""

    call: AttentionCall
    rows: Sequence[int]  # B, T
    widths: list[int]  # of queries and, in self-attention, of keys and values
    head_dims: tuple[int, ...]
    has_bias: bool
    in_weight: Tensor  # (sum of widths, C), in the dtype of the products
    out_weight: Tensor  # (C, H * Dv)
    drop: Drop  # of the output

    def forward(
        self, rows: BlockInput, in_bias: Tensor | None, out_bias: Tensor | None, *memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None, AttentionForm, Sequence[Tensor | None]]:
        """x + dropout(attention(rows)), as of a ``residual.Form``."""
        assert rows.x is not None
        inputs, n_rows, call = (rows, self.in_weight, in_bias), len(rows.x), self.call
        projected, stats = run_fastest("norm-linear", NORM_LINEAR, (self.in_weight,), n_rows, *inputs)
        heads, log_sums = call.run(*self.split_heads(projected, *memory))
        out = linear_residual(heads.view(n_rows, -1), self.out_weight, out_bias, rows.x, self.drop)
        rest = self._replace(
            call=call._replace(mask=None, bias=None, cos=None, sin=None), drop=self.drop._replace(bytes_=None)
        )
        tensors = call.mask, call.bias, call.cos, call.sin, self.drop.bytes_
        return out, stats, rest, (projected, heads, log_sums, *memory, *tensors)

    def backward(
        self,
        rows: BlockInput,
        grad: Tensor,
        stats: Tensor | None,
        tensors: Sequence[Tensor | None],
        needs_weights: tuple[bool, bool],
    ) -> Gradients:
        """The gradients, as of a ``residual.Form``."""
        projected, heads, log_sums, k, v, mask, bias, cos, sin, drop_bytes = tensors
        assert projected is not None and heads is not None and log_sums is not None
        n_rows, drop = len(grad), self.drop._replace(bytes_=drop_bytes)
        d_heads, d_out_weight, d_out_bias = run_fastest(
            "linear-residual-gradient", LINEAR_RESIDUAL_GRADIENT, (self.out_weight,), n_rows,
            heads.view(n_rows, -1), self.out_weight, drop, grad, needs_weights[1],
            needs_weights=needs_weights[1],
        )  # fmt: skip
        d_projected = torch.empty_like(projected)
        d_memory = [None if x is None else torch.empty_like(x) for x in (k, v)]
        qkv = self.split_heads(projected, k, v)
        sums = [grad.new_empty(len(x), *x.shape[2:]) for x in qkv[: len(self.widths)]]
        call = self.call._replace(mask=mask, bias=bias, cos=cos, sin=sin)
        d_qkv = self.split_heads(d_projected, *d_memory)
        call.run(*qkv, heads, log_sums, (d_heads.view(heads.shape), *d_qkv), sums)
        d_in_weight, dx, *d_norm = run_fastest(
            "norm-linear-gradient", NORM_LINEAR_GRADIENT, (self.in_weight,), n_rows,
            rows, self.in_weight, d_projected, grad, stats, needs_weights[0],
            needs_weights=needs_weights[0],
        )  # fmt: skip
        d_in_bias = torch.cat([part.sum(0).flatten() for part in sums]) if self.has_bias else None
        return Gradients(dx, d_norm, d_in_weight, d_in_bias, d_out_weight, d_out_bias, d_memory)

    def split_heads(
        self, projection: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, T, H, D) of one projection; k and v (B, K, S, D) are given separately
        where it has only queries.
        """
        B, T = self.rows
        split = projection.view(B, T, -1).split_with_sizes(self.widths, 2)
        parts = [part.view(B, T, -1, n) for part, n in zip(split, self.head_dims, strict=True)]
        if k is not None and v is not None:
            parts += [k.transpose(1, 2), v.transpose(1, 2)]
        q, k, v = parts
        return q, k, v
