"""Greedy decoding in one kernel call: embedding, layers, head and choice of several tokens of each row."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.kernels.build_extension import INT64
from polyhead.kernels.fused_step import (
    MAX_BUFFER_FLOATS,
    FusedSteps,
    PackedStack,
    StepArguments,
    slot_mapping_of,
)
from polyhead.kernels.program import UnsupportedLayerError, compile_greedy
from polyhead.nn.cache import Cache
from polyhead.nn.embedding import Embedding
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.lm_head import Head
from polyhead.nn.stack import Stack


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
