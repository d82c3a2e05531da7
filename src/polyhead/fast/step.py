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
from polyhead.cache.stored import Places
from polyhead.fast.attention import SQUARE, bias_of, first_rows, pages_of, sizes_of, strides_of
from polyhead.fast.native import POINTER, WHOLE, Sizes, kernels
from polyhead.fast.operations import Op, written
from polyhead.nn.kv import KV, Memory, visible, whole, within_documents
from polyhead.nn.stack import Stack

ROOM = 2**23  # numbers of all rows at most: more do not stay near, and layer by layer they are fewer


class Call(ctypes.Structure):
    """As in step.hpp."""

    _fields_ = [
        *((name, WHOLE) for name in ("rows", "bf16")),
        *((name, POINTER) for name in ("pos", "write")),
        *((name, POINTER * 2) for name in ("kept", "table", "seen", "bias")),
        ("sizes", Sizes * 2),
        ("strange", WHOLE),
    ]


class Read(NamedTuple):
    """What attention of all layers reads: tokens held and new, or the source."""

    kept: list[Tensor]  # keys and values of each layer; empty where nothing is kept
    table: Tensor  # (B, n) int64: the pages of each row
    seen: list[Tensor | None]  # masks (1|B, 1, 1|T, S)
    biases: list[Tensor]  # (1|B, H, T, S), added to scores
    sizes: Sizes

    def told(self, call: Call, i: int) -> tuple[object, ...]:
        """Write the addresses down; they hold as long as what comes back."""
        kept = (POINTER * len(self.kept))(*[part.data_ptr() for part in self.kept])
        seen = (POINTER * len(self.seen))(*[None if mask is None else mask.data_ptr() for mask in self.seen])
        call.kept[i] = ctypes.addressof(kept) if self.kept else None
        biases = (POINTER * len(self.biases))(*[bias.data_ptr() for bias in self.biases])
        call.table[i], call.seen[i], call.bias[i] = (
            self.table.data_ptr(),
            ctypes.addressof(seen),
            ctypes.addressof(biases),
        )
        call.sizes[i] = self.sizes
        return kept, seen, biases


class Steps:
    """The operations of a stack, and how a step is made of them. Where a part has none, making it raises Unknown."""

    def __init__(self, stack: Stack) -> None:
        self.writer, self.out = written(list(stack.layers), stack.final_norm)
        self.ops = (Op * len(self.writer.ops))(*self.writer.ops)
        self.group = max(op.heads // op.kv_heads for op in self.ops if op.kv_heads)
        self.crosses = any(op.source for op in self.ops)
        self.heads, self.causal = max(op.heads for op in self.ops), self.writer.attentions[0].causal

    def __call__(
        self, x: Tensor, pos: Tensor | None, cache: Cache | None, memory: Sequence[Memory] | None
    ) -> Tensor | None:
        """(B, T, C), (B, T) -> (B, T, C); None where a step is none for them, and the layers must do it."""
        (B, T, C), M = x.shape, x.size(0) * x.size(1)
        if not 0 < M * self.writer.width <= ROOM or any(attn.watchers for attn in self.writer.attentions):
            return None
        places = None if cache is None else _places(cache)
        reads = self._reads(B, T, pos, cache, places, memory)
        if reads is None or any(read.kept and read.kept[0].dtype != x.dtype for read in reads):
            return None
        room = torch.empty(M * self.writer.width, dtype=torch.float32)
        room[: M * C].view(B, T, C).copy_(x)
        pos = (whole(T, x.device).expand(B, -1) if pos is None else pos).contiguous()
        call = Call(M, x.dtype == torch.bfloat16, pos.data_ptr(), places and places.write.data_ptr())
        there = [read.told(call, i) for i, read in enumerate(reads)]  # as long as the call lasts
        found = kernels()
        assert found is not None
        found.step_of(self.ops, len(self.ops), ctypes.byref(call), room.data_ptr())
        del there
        if places and call.strange and (soil := getattr(cache.layers[0], "soil", None)):  # type: ignore[union-attr]
            soil(places.write)
        out = room[self.out * M :][: M * C].view(B, T, C)
        return out if x.dtype == out.dtype else out.to(x.dtype)

    def _reads(
        self,
        rows: int,
        length: int,
        pos: Tensor | None,
        cache: Cache | None,
        places: Places | None,
        memory: Sequence[Memory] | None,
    ) -> list[Read] | None:
        """What is read; None where it does not lie as the kernels read it, or is too much for them."""
        if cache is None:
            if not self._small(length, length):
                return None
            own = self._alone(pos, rows, length)
        elif pos is None or places is None or not self._small(length, places.pos.size(2)):
            return None
        else:
            kept = [part for layer in cache.layers for part in (layer.k, layer.v)]  # type: ignore[attr-defined]
            masks = self._masks(pos, places.pos, places.seen)
            sizes = sizes_of(places.pages, rows, length, masks[0])
            own = Read(kept, places.pages.table, masks, self._biases(sizes, pos, places.pos), sizes)
        if not self.crosses:
            return [own]
        source = _source(memory, rows, length)
        if source is None or not self._small(length * source.sizes.share, source.sizes.slots):
            return None
        return [own, source]

    def _small(self, queries: int, slots: int) -> bool:
        return queries * self.group * slots <= SQUARE

    def _alone(self, pos: Tensor | None, rows: int, length: int) -> Read:
        """Tokens that see those of their row and no others."""
        masks: list[Tensor | None] = [None]
        if pos is not None or self.causal or len(self.writer.windows) > 1:
            pos = whole(length, torch.device("cpu")).expand(rows, -1) if pos is None else pos
            seen = self._masks(pos, pos[:, None], visible(pos, pos[:, None], self.causal))
            masks = [within_documents(mask, pos) for mask in seen]
        if len(masks) > 1:  # they shall lie alike
            masks = [
                None if mask is None else mask.expand(rows, 1, length, -1).contiguous() for mask in masks
            ]
        sizes = Sizes(rows=rows, share=1, queries=length, slots=length, block=length, pages=1)
        sizes.seen_row, sizes.seen_head, sizes.seen_query = strides_of(masks[0])
        biases = self._biases(sizes, pos, None if pos is None else pos[:, None])
        return Read([], first_rows(rows), masks, biases, sizes)

    def _masks(self, pos: Tensor, there: Tensor, seen: Tensor | None) -> list[Tensor | None]:
        """What each kind of attention sees of slots at positions (B, 1, S)."""
        return [
            seen if window is None else visible(pos, there, self.causal, window)
            for window in self.writer.windows
        ]

    def _biases(self, sizes: Sizes, pos: Tensor | None, there: Tensor | None) -> list[Tensor]:
        """What is added to the scores of slots at positions (B, 1, S)."""
        extent = self.heads, sizes.queries, sizes.slots
        found = [bias_of(position, extent, pos, there) for position in self.writer.biases]
        biases = [bias for bias in found if bias is not None]
        for bias in biases:  # they lie alike
            sizes.bias_row, sizes.bias_head, sizes.bias_query = strides_of(bias)
        return biases

    def __deepcopy__(self, memo: object) -> Steps:
        return self  # it never changes


def _places(cache: Cache) -> Places | None:
    """Where a step's keys and values go; most kinds of caches have no such slots."""
    tell = getattr(cache.layers[0], "places", None)
    return None if tell is None else tell()


def _source(memory: Sequence[Memory] | None, rows: int, queries: int) -> Read | None:
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
    first, parts = memory[0], [part for kv in memory for part in (kv.k, kv.v)]  # type: ignore[attr-defined]
    assert isinstance(first, KV)
    pages = pages_of(first)
    return Read(parts, pages.table, [first.seen], [], sizes_of(pages, rows, queries, first.seen))


class PackedStack(Stack):
    """A stack whose steps are one call."""

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
        out = self.steps(x, pos, cache, memory)
        return super().forward(x, pos, cache, memory) if out is None else out
