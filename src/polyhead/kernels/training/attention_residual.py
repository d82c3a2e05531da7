"""Residuals with softmax attention in one function: norm, projections, attention and output.

Kept for the backward pass are the input, the projections, the output of attention with a logsumexp for each
query, and the random bytes of dropout; the normed input and the weights are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.kernels.training.attention import LANES, MAX_HEAD_DIM, AttentionCall
from polyhead.kernels.training.blocks import BlockInput
from polyhead.kernels.training.conditions import find_norm, is_fusable, list_modules
from polyhead.kernels.training.elementwise import Drop, Norm
from polyhead.kernels.training.epilogues import linear_residual
from polyhead.kernels.training.linear_forms import (
    linear_residual_gradient,
    norm_linear,
    norm_linear_gradient,
)
from polyhead.kernels.training.weights import WeightCopies, join_biases
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import KV, attention_mask
from polyhead.nn.position.alibi import Alibi
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope
from polyhead.nn.precision import product_dtype
from polyhead.nn.residual import Residual


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
        _describe_call(x, layer, pos, memory, position),
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
        residual.norm.weight if norm.has_weight else None,
        getattr(residual.norm, "bias", None),
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
    x: Tensor, layer: Attention, pos: Tensor | None, memory: KV | None, position: Position
) -> AttentionCall:
    """The visible keys, biases and rotations."""
    length, heads = x.size(1), layer.q_proj.weight.size(0) // layer.head_dim
    own_tokens = x.new_empty(1, 1, length, 0)
    kv = KV(own_tokens, own_tokens, None if pos is None else pos[:, None]) if memory is None else memory
    window = layer.window if memory is None else None
    mask = attention_mask(pos, kv, length, layer.causal, window, own_tokens_only=memory is None)
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
