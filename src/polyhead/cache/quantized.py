"""The cache of whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import Arrivals, RowCache, RowLayer, of
from polyhead.errors import UserError
from polyhead.nn.kv import KV, visible
from polyhead.registry import CACHE


class Place(NamedTuple):
    """Which groups one step fills."""

    new: Arrivals
    pos: Tensor  # (B, 1, S): groups, then the tail, then what is new
    seen: Tensor  # (B, 1, T, S)
    packed: Tensor  # (B,) groups that each row had packed before this step
    full: list[int]  # groups that each row fills with it
    more: int  # groups of storage that come into being


@CACHE.register("quantized")
class QuantizedCache(RowCache):
    """Groups of tokens in 8 or 4 bits a number, the newest tokens of an unfinished group as they are.

    A group is packed when it is full, after the step that fills it has read it whole; its scales are its own, so they
    follow what comes later. A head's keys are scaled channel by channel over the group, because some channels are large
    in all tokens, its values token by token. Two numbers of 4 bits share a byte. What is read is unpacked at every step.

    Equation: q = round((x - zero) / scale),  zero = min x,  scale = (max x - min x) / (2^bits - 1)
    Paper: Liu et al., 2024 (KIVI), sec. 3; Hooper et al., 2024 (KVQuant), sec. 3.1
    When: memory is short and texts are long; 8 bits hardly change a word
    Recipe: generation: {cache: {name: quantized, bits: 4, group: 32}}
    Options:
      bits: of a number, 8 or 4
      group: tokens that are packed together
    """

    name = "quantized"

    def __init__(
        self, shape: CacheShape, n_rows: int, max_len: int, *, bits: Literal[8, 4] = 8, group: int = 32
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        if group < 2 or group % 2:
            raise UserError(
                f"cache 'quantized': group is {group}; two numbers may share a byte, so an even number"
            )
        self.group, self.groups = group, 0
        self.layers: list[QuantizedLayer] = [
            QuantizedLayer(shape, n_rows, bits, group) for _ in range(shape.n_layers)
        ]

    def used(self) -> int:
        return sum(layer.used(self.lengths) for layer in self.layers)

    def place(self, new: Arrivals) -> Place:
        packed = new.before // self.group
        full = new.after // self.group - packed
        at = torch.arange(self.groups * self.group, device=self.device)
        groups = torch.where(at < packed[:, None] * self.group, at, -1)
        tail = packed[:, None] * self.group + torch.arange(self.group, device=self.device)
        pos = torch.cat([groups, torch.where(tail < new.before[:, None], tail, -1), new.pos], 1)[:, None]
        more = max([0, *(length // self.group - self.groups for length in self.lengths)])
        self.groups += more
        return Place(new, pos, visible(new.pos, pos, True), packed, full.tolist(), more)


class QuantizedLayer(RowLayer):
    """Packed groups (row, K, group, tokens / numbers a byte, D), what unpacks them, and a tail (row, K, tokens, D)."""

    kept: Mapping[str, int] = {
        f"{name}{part}": 0 for name in ("k", "v") for part in ("", "_scale", "_zero", "_tail")
    }

    def __init__(self, shape: CacheShape, n_rows: int, bits: int, group: int) -> None:
        super().__init__()
        self.bits, self.group = bits, group
        for name, dim, tail in zip(("k", "v"), (-2, -1), shape.storage(n_rows, group), strict=True):
            setattr(self, f"{name}_tail", tail)
            for part, x in zip(("", "_scale", "_zero"), pack(tail[:, :, None, :, :], bits, dim), strict=True):
                setattr(self, name + part, x[:, :, :0])
        heads, width, each = shape.n_kv_heads, shape.head_dim + shape.v_dim, shape.dtype.itemsize
        self.token_bytes = shape.token_bytes
        self.group_bytes = heads * (group * width * bits // 8 + 2 * (shape.head_dim + group) * each)

    def used(self, lengths: Sequence[int]) -> int:
        groups, rest = sum(n // self.group for n in lengths), sum(n % self.group for n in lengths)
        return groups * self.group_bytes + rest * self.token_bytes

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: what is packed, the tail, what is new."""
        place: Place = self.step
        k, v = self._one("k", -2, kv.k, place), self._one("v", -1, kv.v, place)
        return KV(k, v, place.pos, seen=place.seen)

    def _one(self, name: str, dim: int, x: Tensor, place: Place) -> Tensor:
        """Keys or values."""
        new = place.new
        parts = [getattr(self, name + part) for part in ("", "_scale", "_zero")]
        tail: Tensor = getattr(self, f"{name}_tail")
        x, before = new.clean(x.to(tail.dtype)), of(tail, new.rows)
        q, scale, zero = (of(part, new.rows) for part in parts)
        read = unpack(q, scale, zero, self.bits)
        seen = torch.cat([read.flatten(2, 3), before, x], 2)
        if place.more:
            parts = [torch.cat([p, p.new_zeros(*p.shape[:2], place.more, *p.shape[3:])], 2) for p in parts]
        setattr(self, f"{name}_tail", self._fill(parts, tail, before, x, dim, place))
        for part, kept in zip(("", "_scale", "_zero"), parts, strict=True):
            setattr(self, name + part, kept)
        return seen

    def _fill(
        self, parts: list[Tensor], tail: Tensor, before: Tensor, x: Tensor, dim: int, place: Place
    ) -> Tensor:
        """Tail and new tokens in a line; groups of it that are full are packed, the rest is the next tail."""
        new, group = place.new, self.group
        if not any(place.full):
            new.write(tail, x, new.pos % group)
            return tail
        width = group * (max(place.full) + 1)
        line = x.new_zeros(*x.shape[:2], width, x.size(3))
        line[:, :, :group] = before
        b, t = new.real
        line[b, :, new.pos[b, t] - place.packed[b] * group] = x[b, :, t]
        groups = line.unflatten(2, (-1, group))
        here = [(i, g) for i, full in enumerate(place.full) for g in range(full)]
        i, g = torch.tensor(here, device=x.device).T
        row, at = i if new.rows is None else new.rows[i], place.packed[i] + g
        for part, packed in zip(parts, pack(groups[i, :, g], self.bits, dim), strict=True):
            part[row, :, at] = packed
        rest = groups[torch.arange(len(x), device=x.device), :, torch.tensor(place.full, device=x.device)]
        tail = tail.clone()
        tail[slice(None) if new.rows is None else new.rows] = rest
        return tail


def pack(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """(..., G, D) -> numbers of so many bits in bytes (..., G * bits / 8, D), and what along ``dim`` gives them back:
    scale and zero."""
    low, high, levels = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True), 2**bits - 1
    scale = (high.float() - low.float()).div(levels).to(x.dtype)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    q = ((x.float() - low.float()) / scale.float()).round().clamp(0, levels).to(torch.uint8)
    return q if bits == 8 else q[..., 0::2, :] | q[..., 1::2, :] << 4, scale, low


def unpack(q: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """What ``pack`` was given, to half a scale: (..., G, D)."""
    if bits == 4:
        q = torch.stack([q & 15, q >> 4], -2).flatten(-3, -2)
    return torch.addcmul(zero, q.to(scale.dtype), scale)
