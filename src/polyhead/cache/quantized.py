"""Quantized cache: keys and values as 8-bit or 4-bit integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, select_rows
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, visible


class QuantizedStepLayout(NamedTuple):
    """The groups that one step fills."""

    tokens: StepTokens
    pos: Tensor  # (B, 1, S): packed groups, then the tail, then the new tokens
    mask: Tensor  # (B, 1, T, S)
    packed_groups: Tensor  # (B,) packed groups of each row before this step
    full_groups: list[int]  # groups of each row that this step fills
    n_new_groups: int  # groups by which storage grows


@CACHE.register("quantized")
class QuantizedCache(RowCache):
    """Quantize groups of tokens to 8 or 4 bits; tokens of an incomplete group stay in full precision.

    A group is quantized when it is full, after the step that fills it has read it in full precision. Each
    group has its own scales, so scales adapt to later tokens. Keys are scaled per channel over the group,
    because some channels are large in all tokens, values per token. Two 4-bit numbers share a byte. Every
    step dequantizes what it reads.

    Equation: q = round((x - zero) / scale),  zero = min x,  scale = (max x - min x) / (2^bits - 1)
    Paper: Liu et al., 2024 (KIVI), sec. 3; Hooper et al., 2024 (KVQuant), sec. 3.1
    When: long texts and little memory; 8 bits change hardly any output token
    Recipe: generation: {cache: {name: quantized, bits: 4, group: 32}}
    Options:
      bits: bits per number, 8 or 4
      group: tokens that are quantized together
    """

    name, has_growing_slots = "quantized", True

    def __init__(
        self, shape: CacheShape, n_rows: int, max_len: int, *, bits: Literal[8, 4] = 8, group: int = 32
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        if group < 2 or group % 2:
            raise UserError(
                f"cache 'quantized': group is {group}; it must be even, since two numbers can share a byte"
            )
        self.group, self.n_groups = group, 0
        self.layers: list[QuantizedLayer] = [
            QuantizedLayer(shape, n_rows, bits, group) for _ in range(shape.n_layers)
        ]

    def used_bytes(self) -> int:
        return sum(layer.used_bytes(self.lengths) for layer in self.layers)

    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        super().import_rows(tensors)
        self.n_groups = max(self.n_groups, tensors["layers.0.k"].size(2))

    def plan_step(self, tokens: StepTokens) -> QuantizedStepLayout:
        packed_groups = tokens.len_before // self.group
        full_groups = tokens.len_after // self.group - packed_groups
        slot = torch.arange(self.n_groups * self.group, device=self.device)
        groups = torch.where(slot < packed_groups[:, None] * self.group, slot, -1)
        tail = packed_groups[:, None] * self.group + torch.arange(self.group, device=self.device)
        pos = torch.cat([groups, torch.where(tail < tokens.len_before[:, None], tail, -1), tokens.pos], 1)[
            :, None
        ]
        n_new_groups = max([0, *(length // self.group - self.n_groups for length in self.lengths)])
        self.n_groups += n_new_groups
        return QuantizedStepLayout(
            tokens, pos, visible(tokens.pos, pos, True), packed_groups, full_groups.tolist(), n_new_groups
        )


class QuantizedLayer(RowLayer):
    """Groups (row, K, group, tokens / numbers per byte, D), scales, zeros, and a tail (row, K, tokens, D)."""

    row_tensors: Mapping[str, int] = {
        f"{name}{part}": 0 for name in ("k", "v") for part in ("", "_scale", "_zero", "_tail")
    }

    def __init__(self, shape: CacheShape, n_rows: int, bits: int, group: int) -> None:
        super().__init__()
        self.bits, self.group = bits, group
        for name, dim, tail in zip(("k", "v"), (-2, -1), shape.make_storage(n_rows, group), strict=True):
            setattr(self, f"{name}_tail", tail)
            for part, x in zip(
                ("", "_scale", "_zero"), quantize_groups(tail[:, :, None, :, :], bits, dim), strict=True
            ):
                setattr(self, name + part, x[:, :, :0])
        heads, width, itemsize = shape.n_kv_heads, shape.head_dim + shape.v_dim, shape.dtype.itemsize
        self.token_bytes = shape.token_bytes
        self.group_bytes = heads * (group * width * bits // 8 + 2 * (shape.head_dim + group) * itemsize)

    def used_bytes(self, lengths: Sequence[int]) -> int:
        groups, rest = sum(n // self.group for n in lengths), sum(n % self.group for n in lengths)
        return groups * self.group_bytes + rest * self.token_bytes

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """Store (B, K, T, D) and return (B, K, S, D): packed groups, the tail, the new tokens."""
        layout: QuantizedStepLayout = self.step
        k, v = self._update_tensor("k", -2, kv.k, layout), self._update_tensor("v", -1, kv.v, layout)
        return KV(k, v, layout.pos, mask=layout.mask)

    def _update_tensor(self, name: str, dim: int, x: Tensor, layout: QuantizedStepLayout) -> Tensor:
        """Store the new keys (name "k") or values ("v") and return all of them, dequantized."""
        tokens = layout.tokens
        parts = [getattr(self, name + part) for part in ("", "_scale", "_zero")]
        tail: Tensor = getattr(self, f"{name}_tail")
        x, old_tail = tokens.zero_padding(x.to(tail.dtype)), select_rows(tail, tokens.rows)
        q, scale, zero = (select_rows(part, tokens.rows) for part in parts)
        stored = dequantize_groups(q, scale, zero, self.bits)
        joined = torch.cat([stored.flatten(2, 3), old_tail, x], 2)
        if layout.n_new_groups:
            parts = [
                torch.cat([p, p.new_zeros(*p.shape[:2], layout.n_new_groups, *p.shape[3:])], 2) for p in parts
            ]
        setattr(self, f"{name}_tail", self._pack_full_groups(parts, tail, old_tail, x, dim, layout))
        for part, stored_part in zip(("", "_scale", "_zero"), parts, strict=True):
            setattr(self, name + part, stored_part)
        return joined

    def _pack_full_groups(
        self,
        parts: list[Tensor],
        tail: Tensor,
        old_tail: Tensor,
        x: Tensor,
        dim: int,
        layout: QuantizedStepLayout,
    ) -> Tensor:
        """Concatenate tail and new tokens, pack the full groups into ``parts`` and return the new tail."""
        tokens, group = layout.tokens, self.group
        if not any(layout.full_groups):
            tokens.write(tail, x, tokens.pos % group)
            return tail
        width = group * (max(layout.full_groups) + 1)
        line = x.new_zeros(*x.shape[:2], width, x.size(3))
        line[:, :, :group] = old_tail
        b, t = tokens.valid_index
        line[b, :, tokens.pos[b, t] - layout.packed_groups[b] * group] = x[b, :, t]
        groups = line.unflatten(2, (-1, group))
        full_index = [(i, g) for i, full in enumerate(layout.full_groups) for g in range(full)]
        i, g = torch.tensor(full_index, device=x.device).T
        row, group_ids = i if tokens.rows is None else tokens.rows[i], layout.packed_groups[i] + g
        for part, packed in zip(parts, quantize_groups(groups[i, :, g], self.bits, dim), strict=True):
            part[row, :, group_ids] = packed
        rest = groups[
            torch.arange(len(x), device=x.device), :, torch.tensor(layout.full_groups, device=x.device)
        ]
        tail = tail.clone()
        tail[slice(None) if tokens.rows is None else tokens.rows] = rest
        return tail


def quantize_groups(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize (..., G, D) -> bytes (..., G * bits / 8, D), and scale and zero along ``dim``."""
    low, high, levels = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True), 2**bits - 1
    scale = (high.float() - low.float()).div(levels).to(x.dtype)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    q = ((x.float() - low.float()) / scale.float()).round().clamp(0, levels).to(torch.uint8)
    return q if bits == 8 else q[..., 0::2, :] | q[..., 1::2, :] << 4, scale, low


def dequantize_groups(q: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """Inverse of ``quantize_groups``, exact to half a scale: -> (..., G, D)."""
    if bits == 4:
        q = torch.stack([q & 15, q >> 4], -2).flatten(-3, -2)
    return torch.addcmul(zero, q.to(scale.dtype), scale)
