"""A step of a whole decoder by one call of the kernels.

Between two small products Python takes longer than they do. What the layers do is written down once, when a model is
packed; a step only tells where its tokens, keys and values lie.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import Cache
from polyhead.cache.stored import Pages, Places
from polyhead.fast.attention import SQUARE, pages_of, sizes_of
from polyhead.fast.native import POINTER, WHOLE, Sizes, kernels
from polyhead.fast.operations import Op, written
from polyhead.nn.kv import KV, Memory, visible
from polyhead.nn.stack import Stack


class Call(ctypes.Structure):
    """As in step.hpp."""

    _fields_ = [
        *((name, WHOLE) for name in ("rows", "bf16")),
        *((name, POINTER) for name in ("pos", "write")),
        *((name, POINTER * 2) for name in ("kept", "table", "seen")),
        ("sizes", Sizes * 2),
        ("strange", WHOLE),
    ]


class Read(NamedTuple):
    """What attention of all layers reads: of the tokens so far, or of the source."""

    kept: list[Tensor]  # keys and values of each layer, which lie alike
    pages: Pages  # of one of them
    seen: list[Tensor | None]  # masks (B, 1, T, S)


class Steps:
    """The operations of a stack, and how a step is made of them. Where a part has none, making it raises Unknown."""

    def __init__(self, stack: Stack) -> None:
        self.writer, self.out = written(list(stack.layers), stack.final_norm)
        self.ops = (Op * len(self.writer.ops))(*self.writer.ops)
        self.group = max(op.heads // op.kv_heads for op in self.ops if op.kv_heads)
        self.crosses = any(op.source for op in self.ops)

    def __call__(
        self, x: Tensor, pos: Tensor, cache: Cache, memory: Sequence[Memory] | None
    ) -> Tensor | None:
        """(B, T, C), (B, T) -> (B, T, C); None where a step is none for them, and the layers must do it."""
        tell = getattr(cache.layers[0], "places", None)  # most kinds of caches have no such slots
        places: Places | None = None if tell is None else tell()
        if places is None or any(attn.watchers for attn in self.writer.attentions):
            return None
        masks: list[Tensor | None] = [
            places.seen if window is None else visible(pos, places.pos, True, window)
            for window in self.writer.windows
        ]
        kept = [part for layer in cache.layers for part in (layer.k, layer.v)]  # type: ignore[attr-defined]
        reads = [Read(kept, places.pages, masks)]
        if self.crosses:
            source = _source(memory)
            if source is None:
                return None
            reads.append(source)
        (B, T, C), most = x.shape, SQUARE // (x.size(1) * self.group)
        if any(
            read.pages.k.dtype != x.dtype
            or B // len(read.pages.table) * read.pages.table.size(1) * read.pages.k.size(2) > most
            for read in reads
        ):
            return None
        room, M = torch.empty(B * T * self.writer.width), B * T
        room[: M * C].view(B, T, C).copy_(x)
        pos, write = pos.contiguous(), places.write
        call = Call(M, x.dtype == torch.bfloat16, pos.data_ptr(), write.data_ptr())
        held = []
        for i, (parts, pages, seen) in enumerate(reads):
            kept_at = (POINTER * len(parts))(*[part.data_ptr() for part in parts])
            seen_at = (POINTER * len(seen))(*[None if mask is None else mask.data_ptr() for mask in seen])
            held += [kept_at, seen_at]
            call.kept[i], call.seen[i] = ctypes.addressof(kept_at), ctypes.addressof(seen_at)
            call.table[i], call.sizes[i] = pages.table.data_ptr(), sizes_of(pages, B, T, seen[0])
        found = kernels()
        assert found is not None
        found.step_of(self.ops, len(self.ops), ctypes.byref(call), room.data_ptr())
        if call.strange and (soil := getattr(cache.layers[0], "soil", None)):
            soil(places.write)
        out = room[self.out * M :][: M * C].view(B, T, C)
        return out if x.dtype == out.dtype else out.to(x.dtype)

    def __deepcopy__(self, memo: object) -> Steps:
        return self  # it never changes


def _source(memory: Sequence[Memory] | None) -> Read | None:
    """Keys and values of the source, as they are kept for being read at every step; None where they are not."""
    if not memory or not all(
        type(kv) is KV
        and kv.log_count is None
        and (kv.pos is None or kv.seen is not None)
        and kv.k.is_contiguous()
        and kv.v.is_contiguous()
        for kv in memory
    ):
        return None
    first = memory[0]
    assert isinstance(first, KV)
    return Read([part for kv in memory for part in kv[:2]], pages_of(first), [first.seen])  # type: ignore[index]


class PackedStack(Stack):
    """A stack whose steps with a cache are one call."""

    def __init__(self, plain: Stack) -> None:
        super().__init__(list(plain.layers), plain.final_norm)
        self.steps = Steps(plain)
        self.eval()

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        memory: Sequence[Memory] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        out = None if cache is None or pos is None else self.steps(x, pos, cache, memory)
        return super().forward(x, pos, cache, memory) if out is None else out
