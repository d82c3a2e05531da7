"""Heavy-hitter cache (H2O): keeps the tokens with the largest accumulated attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, broadcast_slots, select_rows, write_rows
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeInt, PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, WeightsHook, visible


@CACHE.register("h2o")
class H2OCache(RowCache):
    """Keep the first tokens, the newest ones, and of the others those with the largest accumulated attention.

    Every key/value head has its own ``budget`` tokens. The attention weights of its queries on a slot are
    summed since the slot was written; after a step that exceeds the budget the slots with the smallest sums
    are evicted, never the sink or the recent tokens. The step itself attends to the slots before it and to
    all its new tokens, so a prompt that is processed in one step is attended to completely.

    Equation: score_s = Σ_t Σ_{h of the group} softmax_s(q_{h,t} k)
              evict argmin score over slots neither sink nor recent
    Paper: Zhang et al., 2023 (H2O), alg. 1
    When: long prompts of which only unknown parts matter
    Recipe: generation: {cache: {name: h2o, budget: 256}}
    Options:
      budget: tokens per head, including sink and recent tokens
      recent: number of newest tokens that are never evicted; default: half of the budget
      sink: number of first tokens of a row that are never evicted
    """

    name = "h2o"

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        budget: PositiveInt = 256,
        recent: PositiveInt | None = None,
        sink: NonNegativeInt = 4,
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        recent = recent or max(1, budget // 2)
        if budget < recent + sink:
            raise UserError(
                f"cache 'h2o': a budget of {budget} tokens with {recent} recent ones and a sink of {sink}; "
                f"expected a budget of at least {recent + sink}"
            )
        slots = min(budget, max_len) + 1
        self.layers: list[H2OLayer] = [
            H2OLayer(shape, n_rows, slots, sink, recent) for _ in range(shape.n_layers)
        ]

    def used_bytes(self) -> int:
        return sum(layer.used_bytes(self.lengths) for layer in self.layers)


class H2OLayer(RowLayer):
    """Keys and values of one layer: (row, K, slot, D), unordered.

    One slot more than the budget, free between steps, takes the newest token until the eviction.
    """

    row_tensors: Mapping[str, int] = {"k": 0, "v": 0, "pos": -1, "score": 0}

    def __init__(self, shape: CacheShape, n_rows: int, slots: int, sink: int, recent: int) -> None:
        super().__init__()
        self.sink, self.recent, self.slots = sink, recent, slots
        self.k, self.v = shape.make_storage(n_rows, slots)
        self.pos = torch.full(self.k.shape[:3], -1, device=shape.device)
        self.score = torch.zeros_like(self.pos, dtype=torch.float32)  # fp32: a sum over many tokens
        self.slot_bytes = shape.token_bytes + shape.n_kv_heads * (8 + 4)
        self.pending_kv: KV | None = None  # KV of this step, until accumulate_scores has its weights

    @property
    def weights_hook(self) -> WeightsHook:  # type: ignore[override]
        """Receives the attention weights; stored as an attribute it would be a cycle, which is freed late."""
        return self.accumulate_scores

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return sum(min(length, self.slots - 1) for length in lengths) * self.slot_bytes

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """Store (B, K, T, D) and return (B, K, S, D): the stored and the new tokens."""
        tokens: StepTokens = self.step
        if self.pending_kv is not None:
            raise UserError(
                "cache 'h2o' gets no attention weights: attention of this model does not call its hooks"
            )
        new_kv = [tokens.zero_padding(x.to(self.k.dtype)) for x in (kv.k, kv.v)]
        pos = tokens.pos[:, None].expand(-1, self.pos.size(1), -1)
        stored = [select_rows(x, tokens.rows) for x in (self.k, self.v, self.pos)]
        if pos.size(2) == 1:  # there is a free slot
            free_slot = stored[2].argmin(-1, keepdim=True)
            for x, y in zip(stored, (*new_kv, pos), strict=True):
                x.scatter_(2, broadcast_slots(free_slot, x), y)
            stored[2] = stored[2].clone()  # accumulate_scores overwrites self.pos but needs these positions
            if tokens.rows is not None:  # the selected rows are copies
                write_rows(self.k, tokens.rows, stored[0])
                write_rows(self.v, tokens.rows, stored[1])
        else:
            stored = [torch.cat([x, y], 2) for x, y in zip(stored, (*new_kv, pos), strict=True)]
        k, v, slot_pos = stored
        self.pending_kv = KV(k, v, slot_pos, mask=visible(tokens.pos, slot_pos, True))
        return self.pending_kv

    @torch.no_grad()
    def accumulate_scores(self, weights: Tensor) -> None:
        """Add the attention weights (B, H, T, S) to the scores and evict the slots with the smallest ones."""
        tokens, kv, self.pending_kv = self.step, self.pending_kv, None
        assert kv is not None, "update() must be called before its weights arrive"
        assert kv.pos is not None
        score = weights.float().masked_fill((tokens.pos < 0)[:, None, :, None], 0)
        score = score.unflatten(1, (kv.k.size(1), -1)).sum((2, 3))
        score[:, :, : self.slots] += select_rows(self.score, tokens.rows)  # a free slot holds 0
        newest = tokens.len_after[:, None, None] - 1
        priority = score.masked_fill((kv.pos < self.sink) | (kv.pos > newest - self.recent), torch.inf)
        priority = priority.masked_fill(kv.pos < 0, -torch.inf)
        if tokens.pos.size(1) == 1:
            evicted = priority.argmin(-1, keepdim=True)  # an empty slot, if there is one
            write_rows(self.pos, tokens.rows, kv.pos.scatter(2, evicted, -1))
            write_rows(self.score, tokens.rows, score.scatter(2, evicted, 0))
            return
        kept_slots = priority.topk(self.slots - 1).indices
        for x, y, empty in (
            (self.k, kv.k, 0),
            (self.v, kv.v, 0),
            (self.pos, kv.pos, -1),
            (self.score, score, 0),
        ):
            kept_values = y.gather(2, broadcast_slots(kept_slots, y))
            write_rows(
                x,
                tokens.rows,
                torch.cat(
                    [
                        kept_values,
                        kept_values.new_full((*kept_values.shape[:2], 1, *kept_values.shape[3:]), empty),
                    ],
                    2,
                ),
            )
