"""Dynamic cache: new keys and values are concatenated to the stored ones."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, select_rows
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, visible


class DynamicStepLayout(NamedTuple):
    """Slots of the new tokens of one step."""

    tokens: StepTokens
    slots: Tensor  # (B, T)
    n_new_slots: int  # slots by which storage grows
    pos: Tensor  # (B, 1, S)
    mask: Tensor  # (B, 1, T, S)


@CACHE.register("growing")
class DynamicCache(RowCache):
    """Append keys and values in order of arrival.

    Storage is as long as the longest row, and is copied at every step. A position that is written again gets
    a new slot, and its old slot stays empty.

    Paper: Pope et al., 2022, sec. 3.3
    When: as a baseline; when the length of texts is unknown and memory is scarce. Lossless
    Recipe: generation: {cache: growing}
    """

    name = "growing"
    lossless, rewinds, has_growing_slots = True, True, True
    row_tensors: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        super().__init__(shape, n_rows, max_len)
        self.pos = torch.full((n_rows, 0), -1, device=shape.device)
        self.layers = [DynamicLayer(shape, n_rows) for _ in range(shape.n_layers)]
        self.slot_bytes = 8 + shape.n_layers * shape.token_bytes

    def used_bytes(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot_bytes

    def plan_step(self, tokens: StepTokens) -> DynamicStepLayout:
        rows = torch.arange(len(self.pos), device=self.device) if tokens.rows is None else tokens.rows
        slot = torch.arange(self.pos.size(1), device=self.device) + 1
        ends = ((self.pos[rows] >= 0) * slot).amax(1) if len(slot) and len(rows) else torch.zeros_like(rows)
        if len(tokens.valid_index[0]) and bool(
            (tokens.pos.amax(1) >= 0).any() & (_min_positions(tokens.pos) < tokens.len_before).any()
        ):
            is_rewritten = (self.pos[rows][:, None] == tokens.pos[:, :, None]) & (tokens.pos >= 0)[:, :, None]
            self.pos[rows] = self.pos[rows].masked_fill(is_rewritten.any(1), -1)
        slots = ends[:, None] + (tokens.pos >= 0).cumsum(1) - 1
        n_new_slots = (
            max(0, int((ends + (tokens.pos >= 0).sum(1)).amax()) - self.pos.size(1)) if len(rows) else 0
        )
        self.pos = torch.cat([self.pos, self.pos.new_full((len(self.pos), n_new_slots), -1)], 1)
        b, t = tokens.valid_index
        self.pos[rows[b], slots[b, t]] = tokens.pos[b, t]
        slot_pos = select_rows(self.pos, tokens.rows)[:, None]
        return DynamicStepLayout(tokens, slots, n_new_slots, slot_pos, visible(tokens.pos, slot_pos, True))


class DynamicLayer(RowLayer):
    """Keys and values of one layer: (row, K, slot, D)."""

    def __init__(self, shape: CacheShape, n_rows: int) -> None:
        super().__init__()
        self.k, self.v = shape.make_storage(n_rows, 0)

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out."""
        tokens, slots, n_new_slots, pos, mask = self.step
        self.k, self.v = F.pad(self.k, (0, 0, 0, n_new_slots)), F.pad(self.v, (0, 0, 0, n_new_slots))
        tokens.write(self.k, kv.k, slots)
        tokens.write(self.v, kv.v, slots)
        if tokens.rows is None:
            return KV(self.k, self.v, pos, mask=mask)
        return KV(self.k[tokens.rows], self.v[tokens.rows], pos, mask=mask)


def _min_positions(pos: Tensor) -> Tensor:
    """The smallest position of each row, without padding: (B, T) -> (B,)."""
    return pos.masked_fill(pos < 0, 2**62).amin(1)
