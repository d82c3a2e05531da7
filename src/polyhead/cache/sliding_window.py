"""Sliding-window cache with attention sinks: the first tokens and the newest ones."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, select_rows
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeInt, PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, Window, visible


class WindowStepLayout(NamedTuple):
    """Slots of the new tokens of one step."""

    tokens: StepTokens  # valid_index without tokens that later tokens of the same step overwrite
    slots: Tensor  # (B, T)
    pos: Tensor  # (B, 1, S)
    mask: Tensor  # (B, 1, T, S)


@CACHE.register("window")
class WindowCache(RowCache):
    """Keep the first ``sink`` tokens of a row and its newest ``window`` tokens, in a ring buffer.

    The first ``sink + window`` tokens of a row are those of the full cache. Beyond them a query attends to
    these tokens only, however the tokens are split into steps, those of a prompt too, so the model runs as if
    its attention had this window and sink; for a model that has them the cache is lossless. Of the caches
    that forget tokens it is the one after which the first new token can differ from the full cache's:
    StreamingLLM reads the whole prompt, then evicts. Positions keep counting. The model's own window must not
    be larger: a step of many tokens would attend to more than many steps.

    Equation: slot(p) = p for p < sink, else sink + (p - sink) mod window
    Paper: Xiao et al., 2023, sec. 3.2
    When: texts of unbounded length in which distant tokens do not matter; a model with sliding-window
      attention
    Recipe: generation: {cache: {name: window, window: 256, sink: 4}}
    Options:
      window: number of newest tokens in the cache, including the current one
      sink: number of first tokens in the cache (attention sinks, which receive much of the attention)
    """

    name = "window"
    row_tensors: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        window: PositiveInt = 256,
        sink: NonNegativeInt = 4,
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        for model_window in filter(None, shape.windows):
            if model_window.size > window or model_window.sink > sink:
                raise UserError(
                    f"cache 'window' keeps {window} tokens and a sink of {sink}, but attention of this "
                    f"model has a window of {model_window.size} and a sink of {model_window.sink}: set at "
                    f"least window={model_window.size}, sink={model_window.sink}"
                )
        self.window = Window(window, sink)
        slots = min(sink + window, max(1, max_len))
        self.pos = torch.full((n_rows, slots), -1, device=shape.device)
        self.layers = [WindowLayer(shape, n_rows, slots) for _ in range(shape.n_layers)]
        self.slot_bytes = 8 + shape.n_layers * shape.token_bytes

    def used_bytes(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot_bytes

    def plan_step(self, tokens: StepTokens) -> WindowStepLayout:
        pos, (window, sink) = tokens.pos, self.window
        slots = torch.where(pos < sink, pos, sink + (pos - sink) % window)
        is_written = (pos >= 0) & ((pos < sink) | (pos >= tokens.len_after[:, None] - window))
        b, t = is_written.nonzero(as_tuple=True)
        old_pos = select_rows(self.pos, tokens.rows)
        pos_before = old_pos.clone() if pos.size(1) > 1 else old_pos
        self.pos[b if tokens.rows is None else tokens.rows[b], slots[b, t]] = pos[b, t]
        slot_pos = torch.cat([pos_before, pos], 1) if pos.size(1) > 1 else select_rows(self.pos, tokens.rows)
        slot_pos = slot_pos[:, None]
        return WindowStepLayout(
            tokens._replace(valid_index=(b, t)), slots, slot_pos, visible(pos, slot_pos, True, self.window)
        )


class WindowLayer(RowLayer):
    """Keys and values of one layer: (row, K, slot, D)."""

    def __init__(self, shape: CacheShape, n_rows: int, slots: int) -> None:
        super().__init__()
        self.k, self.v = shape.make_storage(n_rows, slots)

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """Write (B, K, T, D) -> (B, K, S, D): the slots; if T > 1 the slots before it and the new tokens."""
        tokens, slots, pos, mask = self.step
        new_kv = [tokens.zero_padding(x.to(self.k.dtype)) for x in (kv.k, kv.v)]
        old_kv = (
            ()
            if tokens.pos.size(1) == 1
            else (select_rows(self.k, tokens.rows), select_rows(self.v, tokens.rows))
        )
        joined = [torch.cat([x, y], 2) for x, y in zip(old_kv, new_kv, strict=False)]
        tokens.write(self.k, new_kv[0], slots)
        tokens.write(self.v, new_kv[1], slots)
        k, v = joined or (select_rows(self.k, tokens.rows), select_rows(self.v, tokens.rows))
        return KV(k, v, pos, mask=mask)
