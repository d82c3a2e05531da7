"""Fused decoding step: all layers of a decoder in one kernel call.

Between two small products Python takes longer than the products. The layers are compiled to a program once,
when a model is packed; a step only passes the addresses of its tokens, keys and values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.paged_layer import SlotMapping
from polyhead.kernels.attention import (
    MAX_SCORES,
    attention_sizes,
    broadcast_strides,
    identity_page_table,
    paged_view_of,
    score_bias,
)
from polyhead.kernels.build_extension import INT64, POINTER, AttentionSizes, load_kernels
from polyhead.kernels.program import (
    Instruction,
    ProgramBuilder,
    UnsupportedLayerError,
    compile_greedy,
    compile_stack,
)
from polyhead.nn.cache import Cache
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.kv import KV, EncoderMemory, arange_positions, mask_other_documents, visible
from polyhead.nn.positions import AnyPositions, plain_positions
from polyhead.nn.stack import EncoderOutput, Stack

# maximum size of the buffer of all rows: a larger one does not fit the CPU cache; layer by layer it is
# smaller
MAX_BUFFER_FLOATS = 2**23


class StepArguments(ctypes.Structure):
    """The struct of the same layout in step.hpp."""

    _fields_ = [
        *((name, INT64) for name in ("rows", "bf16")),
        *((name, POINTER) for name in ("pos", "write")),
        *((name, POINTER * 2) for name in ("kept", "table", "seen", "bias")),
        ("sizes", AttentionSizes * 2),
        *((name, INT64) for name in ("strange", "steps")),
        *((name, POINTER) for name in ("tokens", "log_probs", "positions", "banned", "ends")),
        *((name, INT64) for name in ("n_banned", "n_ends", "done", "steps_end")),
    ]


class KVView(NamedTuple):
    """Inputs of self-attention (cached and new tokens) or cross-attention (the source), for all layers."""

    layer_kv: list[Tensor]  # keys and values of each layer; empty without a cache
    page_table: Tensor  # (B, n) int64: the pages of each row
    masks: list[Tensor | None]  # (1|B, 1, 1|T, S), one per window
    biases: list[Tensor]  # (1|B, H, T, S), added to scores
    sizes: AttentionSizes

    def write_pointers(self, args: StepArguments, i: int) -> tuple[object, ...]:
        """Write the addresses into ``args``; they are valid as long as the returned objects live."""
        kv_pointers = (POINTER * len(self.layer_kv))(*[part.data_ptr() for part in self.layer_kv])
        mask_pointers = (POINTER * len(self.masks))(
            *[None if mask is None else mask.data_ptr() for mask in self.masks]
        )
        args.kept[i] = ctypes.addressof(kv_pointers) if self.layer_kv else None
        bias_pointers = (POINTER * len(self.biases))(*[bias.data_ptr() for bias in self.biases])
        args.table[i] = self.page_table.data_ptr()
        args.seen[i] = ctypes.addressof(mask_pointers)
        args.bias[i] = ctypes.addressof(bias_pointers)
        args.sizes[i] = self.sizes
        return kv_pointers, mask_pointers, bias_pointers


class FusedSteps:
    """The compiled program of a stack and its execution; raises UnsupportedLayerError if a layer cannot be
    compiled.
    """

    def __init__(self, stack: Stack) -> None:
        builder, self.out_offset = compile_stack(list(stack.layers), stack.final_norm)
        self._set_program(builder)

    def _set_program(self, builder: ProgramBuilder) -> None:
        self.builder = builder
        self.instructions = (Instruction * len(self.builder.instructions))(*self.builder.instructions)
        self.group = max(op.heads // op.kv_heads for op in self.instructions if op.kv_heads)
        self.has_cross_attention = any(op.source for op in self.instructions)
        self.heads, self.causal = max(op.heads for op in self.instructions), self.builder.attentions[0].causal

    def __call__(
        self, x: Tensor, pos: Tensor | None, cache: Cache | None, memory: Sequence[EncoderMemory] | None
    ) -> Tensor | None:
        """(B, T, C), (B, T) -> (B, T, C); None if the step is not supported and the layers must run."""
        (B, T, C), M = x.shape, x.size(0) * x.size(1)
        if not 0 < M * self.builder.width <= MAX_BUFFER_FLOATS or any(
            attn.weights_hooks for attn in self.builder.attentions
        ):
            return None
        slot_mapping = None if cache is None else slot_mapping_of(cache)
        views = self._kv_views(B, T, pos, cache, slot_mapping, memory)
        if views is None or any(view.layer_kv and view.layer_kv[0].dtype != x.dtype for view in views):
            return None
        buffer = torch.empty(M * self.builder.width, dtype=torch.float32)
        buffer[: M * C].view(B, T, C).copy_(x)
        pos = (arange_positions(T, x.device).expand(B, -1) if pos is None else pos).contiguous()
        args = StepArguments(
            M, x.dtype == torch.bfloat16, pos.data_ptr(), slot_mapping and slot_mapping.slots.data_ptr()
        )
        self._run(args, views, buffer, cache, slot_mapping)
        out = buffer[self.out_offset * M :][: M * C].view(B, T, C)
        return out if x.dtype == out.dtype else out.to(x.dtype)

    def _run(
        self,
        args: StepArguments,
        views: Sequence[KVView],
        buffer: Tensor,
        cache: Cache | None,
        slot_mapping: SlotMapping | None,
    ) -> None:
        """Execute the program; the cache records keys and values that are not finite."""
        # referenced until the call returns
        live_pointers = [view.write_pointers(args, i) for i, view in enumerate(views)]
        kernels = load_kernels()
        assert kernels is not None
        kernels.step_of(self.instructions, len(self.instructions), ctypes.byref(args), buffer.data_ptr())
        del live_pointers
        if slot_mapping and args.strange and (mark := getattr(cache.layers[0], "mark_nonfinite", None)):  # type: ignore[union-attr]
            mark(slot_mapping.slots)

    def _kv_views(
        self,
        rows: int,
        length: int,
        pos: Tensor | None,
        cache: Cache | None,
        slot_mapping: SlotMapping | None,
        memory: Sequence[EncoderMemory] | None,
        *,
        several_steps: bool = False,
    ) -> list[KVView] | None:
        """Inputs of attention; None if their layout or size is not supported by the kernels.

        With ``several_steps`` the ``length`` tokens of a row are those of so many steps.
        """
        if cache is None:
            if not self._fits_kernels(length, length):
                return None
            own_view = self._own_tokens_view(pos, rows, length)
        elif pos is None or slot_mapping is None or not self._fits_kernels(length, slot_mapping.pos.size(2)):
            return None
        else:
            layers: Sequence[Any] = cache.layers  # of a cache with a slot mapping, which have k and v
            layer_kv = [part for layer in layers for part in (layer.k, layer.v)]
            masks = self._attention_masks(pos, slot_mapping.pos, slot_mapping.mask)
            sizes = attention_sizes(slot_mapping.pages, rows, length, masks[0])
            biases = self._score_biases(sizes, pos, slot_mapping.pos)
            own_view = KVView(layer_kv, slot_mapping.pages.table, masks, biases, sizes)
        if several_steps:
            own_view.sizes.queries = length = 1
        if not self.has_cross_attention:
            return [own_view]
        source_view = _source_view(memory, rows, length)
        if source_view is None or not self._fits_kernels(
            length * source_view.sizes.share, source_view.sizes.slots
        ):
            return None
        return [own_view, source_view]

    def _fits_kernels(self, queries: int, slots: int) -> bool:
        return queries * self.group * slots <= MAX_SCORES

    def _own_tokens_view(self, pos: Tensor | None, rows: int, length: int) -> KVView:
        """View of tokens that attend to the tokens of their own row, without a cache."""
        masks: list[Tensor | None] = [None]
        if pos is not None or self.causal or len(self.builder.windows) > 1:
            pos = arange_positions(length, torch.device("cpu")).expand(rows, -1) if pos is None else pos
            own_masks = self._attention_masks(pos, pos[:, None], visible(pos, pos[:, None], self.causal))
            masks = [mask_other_documents(mask, pos) for mask in own_masks]
        if len(masks) > 1:  # all masks need the same strides
            masks = [
                None if mask is None else mask.expand(rows, 1, length, -1).contiguous() for mask in masks
            ]
        sizes = AttentionSizes(rows=rows, share=1, queries=length, slots=length, block=length, pages=1)
        sizes.seen_row, sizes.seen_head, sizes.seen_query = broadcast_strides(masks[0])
        biases = self._score_biases(sizes, pos, None if pos is None else pos[:, None])
        return KVView([], identity_page_table(rows), masks, biases, sizes)

    def _attention_masks(self, pos: Tensor, slot_pos: Tensor, mask: Tensor | None) -> list[Tensor | None]:
        """Mask of each window over slots at positions (B, 1, S)."""
        return [
            mask if window is None else visible(pos, slot_pos, self.causal, window)
            for window in self.builder.windows
        ]

    def _score_biases(
        self, sizes: AttentionSizes, pos: Tensor | None, slot_pos: Tensor | None
    ) -> list[Tensor]:
        """Biases added to the scores of slots at positions (B, 1, S); sets their strides in ``sizes``."""
        score_shape = self.heads, sizes.queries, sizes.slots
        optional_biases = [
            score_bias(position, score_shape, pos, slot_pos) for position in self.builder.biases
        ]
        biases = [bias for bias in optional_biases if bias is not None]
        for bias in biases:  # all have the same strides
            sizes.bias_row, sizes.bias_head, sizes.bias_query = broadcast_strides(bias)
        return biases

    def __deepcopy__(self, memo: object) -> FusedSteps:
        return self  # immutable


def slot_mapping_of(cache: Cache) -> SlotMapping | None:
    """Slot mapping of the step; None for caches that have none."""
    get_mapping = getattr(cache.layers[0], "slot_mapping", None)
    return None if get_mapping is None else get_mapping()


def _source_view(memory: Sequence[EncoderMemory] | None, rows: int, queries: int) -> KVView | None:
    """Keys and values of the source; None if they are not contiguous KV in the layout for decoding."""
    readable = [
        kv
        for kv in memory or ()
        if type(kv) is KV
        and kv.log_count is None
        and (kv.pos is None or kv.mask is not None)
        and kv.k.is_contiguous()
        and kv.v.is_contiguous()
    ]
    if not memory or len(readable) < len(memory):
        return None
    pages, mask = paged_view_of(readable[0]), readable[0].mask
    parts = [part for kv in readable for part in (kv.k, kv.v)]
    return KVView(parts, pages.table, [mask], [], attention_sizes(pages, rows, queries, mask))


class PackedStack(Stack):
    """A stack that runs a step in one kernel call where possible."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(list(stack.layers), stack.final_norm)
        self.steps = FusedSteps(stack)
        self.eval()

    def forward(
        self,
        x: Tensor,
        pos: AnyPositions = None,
        cache: Cache | None = None,
        memory: Sequence[EncoderMemory] | None = None,
        source: EncoderOutput | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); the arguments are those of ``Stack``."""
        if source is None and states is None:
            out = self.steps(x, plain_positions(pos), cache, memory)
            if out is not None:
                return out
        return super().forward(x, pos, cache, memory, source, states)


class GreedySteps(FusedSteps):
    """The compiled program of a decoder, from a token to the most likely next one, and its repetition.

    Raises UnsupportedLayerError if a part cannot be compiled.
    """

    def __init__(self, embedding: Embedding, stack: Stack, head: Head) -> None:
        if head.scale != 1 or head.softcap is not None or not isinstance(stack, PackedStack):
            raise UnsupportedLayerError
        builder, self.positions = compile_greedy(
            embedding,
            list(stack.layers),
            stack.final_norm,
            head.linear,  # type: ignore[arg-type]
        )
        self._set_program(builder)
        self.token_table = embedding.token.weight

    def __call__(  # type: ignore[override]
        self,
        tokens: Tensor,
        pos: Tensor,
        cache: Cache,
        memory: Sequence[EncoderMemory] | None,
        banned_ids: Sequence[int],
        eos_ids: Sequence[int],
    ) -> tuple[Tensor, Tensor] | None:
        """Decode at most T tokens of each row after ``tokens`` (B,), whose positions are the first of (B, T).

        Returns ids (N, B) and their log-probabilities, N <= T: the last step is the first one in which a row
        has one of ``eos_ids``. None if the step is not supported or logits are not finite. The cache is
        prepared for all positions.
        """
        (B, T), mapping = pos.shape, slot_mapping_of(cache)
        too_long = self.positions is not None and int(pos[:, -1].max()) >= len(self.positions)
        is_hooked = any(attn.weights_hooks for attn in self.builder.attentions)
        if not 0 < B * self.builder.width <= MAX_BUFFER_FLOATS or too_long or is_hooked:
            return None
        views = self._kv_views(B, T, pos, cache, mapping, memory, several_steps=True)
        dtype = self.token_table.dtype
        if views is None or any(view.layer_kv and view.layer_kv[0].dtype != dtype for view in views):
            return None
        assert mapping is not None
        buffer = torch.empty(B * self.builder.width, dtype=torch.float32)
        ids, log_probs = torch.empty(T + 1, B, dtype=torch.int64), torch.empty(T, B)
        ids[0] = tokens
        pos = pos.contiguous()
        banned, ends = ((INT64 * len(part))(*part) for part in (banned_ids, eos_ids))
        args = StepArguments(
            B, dtype == torch.bfloat16, pos.data_ptr(), mapping.slots.data_ptr(), steps=T,
            tokens=ids.data_ptr(), log_probs=log_probs.data_ptr(),
            positions=None if self.positions is None else self.positions.data_ptr(),
            banned=ctypes.addressof(banned), ends=ctypes.addressof(ends),
            n_banned=len(banned), n_ends=len(ends),
        )  # fmt: skip
        self._run(args, views, buffer, cache, mapping)
        return (ids[1 : args.done + 1], log_probs[: args.done]) if args.done else None
