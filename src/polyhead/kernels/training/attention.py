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
from polyhead.kernels.training.blocks import BlockInput
from polyhead.kernels.training.conditions import (
    WeightCopies,
    find_norm,
    is_fusable,
    join_biases,
    list_modules,
    norm_weights,
)
from polyhead.kernels.training.elementwise import Drop, Norm, linear_residual
from polyhead.kernels.training.linear_forms import linear_residual_gradient, norm_linear, norm_linear_gradient
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


@cache
def attention_kernels() -> dict[torch.dtype, Any]:
    """The kernel for each data type of queries, keys and values; none without a compiler."""
    library = load_kernels()
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

    def split(self) -> tuple[AttentionCall, tuple[Tensor | None, ...]]:
        """The call without tensors, and these, to be saved for the backward pass."""
        return self.with_tensors(None, None, None, None), (self.mask, self.bias, self.cos, self.sin)

    def with_tensors(
        self, mask: Tensor | None, bias: Tensor | None, cos: Tensor | None, sin: Tensor | None
    ) -> AttentionCall:
        """The inverse of ``split``."""
        return self._replace(mask=mask, bias=bias, cos=cos, sin=sin)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output (B, T, H, Dv), and the logsumexp of each query's scores in base 2: (B, H, T)."""
        B, T, H, _ = q.shape
        out, log_sums = q.new_empty(B, T, H, v.size(3)), q.new_empty(B, H, T, dtype=torch.float32)
        self._run({"q": q, "k": k, "v": v, "out": out}, log_sums, backward=False)
        return out, log_sums

    def backward(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        log_sums: Tensor,
        grad: Tensor,
        grads: tuple[Tensor, Tensor, Tensor],
        sums: Sequence[Tensor] = (),
    ) -> None:
        """Write the gradients of q, k and v into ``grads``, from the output and its gradient.

        ``sums`` receive their sums over tokens, in fp32: (B, H, D), (B, K, D), (B, K, Dv).
        """
        tensors = dict(zip(_TENSORS, (*inputs, out, grad, *grads), strict=True))
        self._run(tensors, log_sums, sums, backward=True)

    def _run(
        self, tensors: dict[str, Tensor], log_sums: Tensor, sums: Sequence[Tensor] = (), *, backward: bool
    ) -> None:
        q, k, v = (tensors[name] for name in "qkv")
        (B, T, H, D), (_, S, K, _) = q.shape, k.shape
        sizes, pointers = _Sizes(B, K, H // K, T, S, D, v.size(3)), _Pointers()
        for name, x in tensors.items():
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
        attention_kernels()[q.dtype](pointers, sizes, backward)


def attend_in_training(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
    """(B, T, H, D), (B, S, K, D), (B, S, K, Dv) -> (B, T, H, Dv), with gradients of q, k and v."""
    out: Tensor = _AttentionFunction.apply(q, k, v, call)
    return out


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        out, log_sums = call.forward(q, k, v)
        ctx.call, tensors = call.split()
        ctx.save_for_backward(q, k, v, out, log_sums, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums, *tensors = ctx.saved_tensors
        grads = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        ctx.call.with_tensors(*tensors).backward((q, k, v), out, log_sums, grad, grads)
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
    return attend_in_training(heads, keys, values, call).transpose(1, 2)


class _Parts(NamedTuple):
    """What is not a weight."""

    norm: Norm
    norm_first: bool
    attention: AttentionCall
    head_dims: tuple[int, ...]  # of queries and, in self-attention, of keys and values
    drop: Drop  # of the output


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
) -> Tensor | None:
    """x + dropout(attention(N(x))) or N(x + dropout(attention(x))): (B, T, C), (B, T) -> (B, T, C)."""
    position = layer.position if position is None else position
    inputs = [layer.q_proj] if memory is not None else [layer.q_proj, layer.k_proj, layer.v_proj]
    norm, maps = find_norm(residual), [*inputs, layer.o_proj]
    if norm is None or cache is not None or not _is_supported(layer, position, inputs):
        return None
    schemes = [] if position.kind == "embeddings" else [layer.position]  # those act elsewhere
    if not is_fusable(x, *list_modules(residual), layer, *schemes, *maps):
        return None
    dtype = product_dtype(x)
    if memory is not None and not _can_read(memory, len(x), dtype):
        return None
    parts = _Parts(
        norm,
        residual.norm_first,
        _describe_call(x, layer, pos, memory, position, documents),
        (layer.head_dim, layer.head_dim, layer.v_head_dim)[: len(inputs)],
        Drop.draw(residual.dropout, (x.numel() // x.size(-1), x.size(-1)), residual.scale),
    )
    out: Tensor = _AttentionResidual.apply(
        parts,
        copies.get(*(part.weight for part in inputs)),
        copies.get(layer.o_proj.weight),
        join_biases(inputs),
        None if memory is None else memory.k,
        None if memory is None else memory.v,
        x,
        *norm_weights(residual),
        *(weight for part in maps for weight in (part.weight, part.bias)),
    )
    return out


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
        and len({part.bias is None for part in inputs}) == 1
        and all(n % LANES == 0 and n <= MAX_HEAD_DIM for n in (layer.head_dim, layer.v_head_dim))
    )


def _can_read(memory: KV, rows: int, dtype: torch.dtype) -> bool:
    """Whether the keys and values are those of as many rows, in the dtype of the products."""
    is_plain = type(memory) is KV and memory.log_count is None and len(memory.k) == rows
    return is_plain and all(x.dtype == dtype and x.stride(3) == 1 for x in (memory.k, memory.v))


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


class _AttentionResidual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        parts: _Parts,
        in_weight: Tensor,
        out_weight: Tensor,
        in_bias: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        *weights: Tensor | None,
    ) -> Tensor:
        norm, (B, T, _) = parts.norm, x.shape
        rows = BlockInput.of(x, norm, parts.norm_first, norm_weight, norm_bias, in_weight.dtype)
        widths = [weight.size(0) for weight in weights[:-2:2] if weight is not None]
        projected, stats = norm_linear(rows, in_weight, in_bias)
        qkv = _split_heads(projected.view(B, T, -1), widths, parts.head_dims, k, v)
        heads, log_sums = parts.attention.forward(*qkv)
        assert rows.x is not None
        out = linear_residual(heads.view(B * T, -1), out_weight, weights[-1], rows.x, parts.drop)
        total = None
        if not parts.norm_first:
            total = out
            out, stats = norm.forward(total, norm_weight, norm_bias, torch.float32)
        attention, tensors = parts.attention.split()
        ctx.save_for_backward(
            *rows.list_tensors(), stats, total, projected, k, v, heads, log_sums, in_weight, out_weight,
            parts.drop.bytes_, *tensors,
        )  # fmt: skip
        ctx.parts, ctx.widths = parts._replace(attention=attention, drop=parts.drop.without_bytes()), widths
        ctx.has_bias = in_bias is not None, weights[-1] is not None
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            *tensors, stats, total, projected, k, v, heads, log_sums, in_weight, out_weight,
            drop_bytes, mask, bias, cos, sin,
        ) = ctx.saved_tensors  # fmt: skip
        parts, widths, needs_weight = ctx.parts, ctx.widths, ctx.needs_input_grad[9::2]
        rows, (B, T, C) = BlockInput(parts.norm, *tensors), grad.shape
        d_total = grad.reshape(-1, C).float().contiguous()
        d_last_norm: Sequence[Tensor | None] = ()
        if total is not None:
            d_total, *d_last_norm = parts.norm.backward(d_total, total, stats, rows.weight, None)
        drop = parts.drop.with_bytes(drop_bytes)
        after = linear_residual_gradient(heads.view(B * T, -1), out_weight, drop, d_total, needs_weight[-1])
        d_projected = torch.empty_like(projected)
        dk, dv = (None if x is None else torch.empty_like(x) for x in (k, v))
        qkv = _split_heads(projected.view(B, T, -1), widths, parts.head_dims, k, v)
        d_qkv = _split_heads(d_projected.view(B, T, -1), widths, parts.head_dims, dk, dv)
        sums = [d_total.new_empty(B, *x.shape[2:]) for x in qkv[: len(widths)]]
        attention = parts.attention.with_tensors(mask, bias, cos, sin)
        attention.backward(qkv, heads, log_sums, after.y.view(heads.shape), d_qkv, sums)
        before = norm_linear_gradient(rows, in_weight, d_projected, d_total, stats, any(needs_weight[:-1]))
        d_norm = d_last_norm or before.norm
        d_in = [None] * len(widths) if before.weight is None else before.weight.split(widths)
        d_in_bias = [part.sum(0).flatten() if ctx.has_bias[0] else None for part in sums]
        return (
            *[None] * 4,
            dk,
            dv,
            before.x.view(grad.shape),
            None if rows.weight is None else d_norm[0],
            None if rows.bias is None else d_norm[1],
            *(part for pair in zip(d_in, d_in_bias, strict=True) for part in pair),
            after.weight,
            after.bias if ctx.has_bias[1] else None,
        )


def _split_heads(
    projection: Tensor, widths: list[int], head_dims: tuple[int, ...], k: Tensor | None, v: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, T, H, D) of one projection; k and v (B, K, S, D) are given separately
    where it has only queries.
    """
    B, T, _ = projection.shape
    split = projection.split_with_sizes(widths, 2)
    parts = [part.view(B, T, -1, n) for part, n in zip(split, head_dims, strict=True)]
    if k is not None and v is not None:
        parts += [k.transpose(1, 2), v.transpose(1, 2)]
    q, k, v = parts
    return q, k, v
