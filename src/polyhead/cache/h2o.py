"""The cache of heavy hitters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import Arrivals, RowCache, RowLayer, along, of, put
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Watcher, visible
from polyhead.registry import CACHE


@CACHE.register("h2o")
class H2OCache(RowCache):
    """The first tokens, the newest ones, and of those between the ones that were looked at most.

    Every key and value head keeps its own ``budget`` tokens. What its queries have put on a slot since it came is summed;
    after a step that leaves more than the budget, the slots with the least sums go, never the sink or the recent ones.
    The step itself sees what was kept before it and all its new tokens, so a prompt read in one step is read whole.

    Equation: score_s = Σ_t Σ_{h of the group} softmax_s(q_{h,t} k);  evict argmin score over slots neither sink nor recent
    Paper: Zhang et al., 2023 (H2O), alg. 1
    When: long prompts of which little matters, and it is not known before what
    Recipe: generation: {cache: {name: h2o, budget: 256}}
    Options:
      budget: tokens that a head keeps, sink and recent ones included
      recent: newest tokens that are kept; half of the budget if not given
      sink: first tokens of a row that are kept
    """

    name = "h2o"

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        budget: int = 256,
        recent: int | None = None,
        sink: int = 4,
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        recent = budget // 2 if recent is None else recent
        if recent < 1 or sink < 0 or budget < recent + sink:
            raise UserError(
                f"cache 'h2o': a budget of {budget} tokens with {recent} recent ones and a sink of {sink}; wanted at "
                f"least 1 recent, a sink of 0 or more, and a budget of at least {max(1, recent) + max(0, sink)}"
            )
        slots = min(budget, max_len) + 1
        self.layers: list[H2OLayer] = [
            H2OLayer(shape, n_rows, slots, sink, recent) for _ in range(shape.n_layers)
        ]

    def used(self) -> int:
        return sum(layer.used(self.lengths) for layer in self.layers)


class H2OLayer(RowLayer):
    """(row, K, slot, D), in no order; one slot more than the budget, free between steps, holds the newest token until it
    is known which one goes."""

    kept: Mapping[str, int] = {"k": 0, "v": 0, "pos": -1, "score": 0}

    def __init__(self, shape: CacheShape, n_rows: int, slots: int, sink: int, recent: int) -> None:
        super().__init__()
        self.sink, self.recent, self.slots = sink, recent, slots
        self.k, self.v = shape.storage(n_rows, slots)
        self.pos = torch.full(self.k.shape[:3], -1, device=shape.device)
        self.score = torch.zeros_like(self.pos, dtype=torch.float32)  # fp32: a sum over a long past
        self.slot = shape.token_bytes + shape.n_kv_heads * (8 + 4)
        self.shown: KV | None = None  # what this step's attention sees, until it says how

    @property
    def watcher(self) -> Watcher:
        return self.watch

    def used(self, lengths: Sequence[int]) -> int:
        return sum(min(length, self.slots - 1) for length in lengths) * self.slot

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: what was kept and what is new."""
        new: Arrivals = self.step
        if self.shown is not None:
            raise UserError(
                "cache 'h2o' is shown no weights: attention of this model does not call its watchers"
            )
        fed = new.clean(kv.k.to(self.k.dtype)), new.clean(kv.v.to(self.v.dtype))
        pos = new.pos[:, None].expand(-1, self.pos.size(1), -1)
        held = [of(x, new.rows) for x in (self.k, self.v, self.pos)]
        if pos.size(2) == 1:  # there is a free slot
            free = held[2].argmin(-1, keepdim=True)
            for x, y in zip(held, (*fed, pos), strict=True):
                x.scatter_(2, along(free, x), y)
            held[2] = held[2].clone()  # what is let go is still asked for after the weights were shown
            if new.rows is not None:  # held was a copy
                put(self.k, new.rows, held[0])
                put(self.v, new.rows, held[1])
        else:
            held = [torch.cat([x, y], 2) for x, y in zip(held, (*fed, pos), strict=True)]
        k, v, there = held
        self.shown = KV(k, v, there, seen=visible(new.pos, there, True))
        return self.shown

    @torch.no_grad()
    def watch(self, weights: Tensor) -> None:
        """(B, H, T, S): add them up, and let go what was looked at least."""
        new, kv, self.shown = self.step, self.shown, None
        assert kv is not None, "update() comes before its weights"
        assert kv.pos is not None
        score = weights.float().masked_fill((new.pos < 0)[:, None, :, None], 0)
        score = score.unflatten(1, (kv.k.size(1), -1)).sum((2, 3))
        score[:, :, : self.slots] += of(self.score, new.rows)  # a free slot holds 0
        newest = new.after[:, None, None] - 1
        worth = score.masked_fill((kv.pos < self.sink) | (kv.pos > newest - self.recent), torch.inf)
        worth = worth.masked_fill(kv.pos < 0, -torch.inf)
        if new.pos.size(1) == 1:
            least = worth.argmin(-1, keepdim=True)  # an empty slot, if there is one
            put(self.pos, new.rows, kv.pos.scatter(2, least, -1))
            put(self.score, new.rows, score.scatter(2, least, 0))
            return
        best = worth.topk(self.slots - 1).indices
        for x, y, empty in (
            (self.k, kv.k, 0),
            (self.v, kv.v, 0),
            (self.pos, kv.pos, -1),
            (self.score, score, 0),
        ):
            kept = y.gather(2, along(best, y))
            put(
                x, new.rows, torch.cat([kept, kept.new_full((*kept.shape[:2], 1, *kept.shape[3:]), empty)], 2)
            )
