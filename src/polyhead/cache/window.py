"""The cache of the first tokens and the newest ones."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import Arrivals, RowCache, RowLayer, of
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Window, visible
from polyhead.registry import CACHE


class Place(NamedTuple):
    """Where one step's tokens go."""

    new: Arrivals  # without those that others of the same step push out
    slots: Tensor  # (B, T)
    pos: Tensor  # (B, 1, S)
    seen: Tensor  # (B, 1, T, S)


@CACHE.register("window")
class WindowCache(RowCache):
    """The first ``sink`` tokens of a row and the newest ``window``, in slots that are written in turn.

    A query sees no more than that, however the tokens are cut into steps, so a model runs as if its attention had this
    window and sink; one that has them loses nothing. Positions go on counting. A window of the model's own may not be
    larger, for a step of many tokens would see more than many steps.

    Equation: slot(p) = p for p < sink, else sink + (p - sink) mod window
    Paper: Xiao et al., 2023, sec. 3.2
    When: texts without end, where what is far does not matter; a model with a window of its own
    Recipe: generation: {cache: {name: window, window: 256, sink: 4}}
    Options:
      window: newest tokens that are kept, the one being read included
      sink: first tokens of a row that are kept, for much attention rests on them
    """

    name = "window"
    kept: ClassVar[dict[str, int]] = {"pos": -1}

    def __init__(
        self, shape: CacheShape, n_rows: int, max_len: int, *, window: int = 256, sink: int = 4
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        if window < 1 or sink < 0:
            raise UserError(
                f"cache 'window': window is {window} and sink {sink}; wanted at least 1 and at least 0"
            )
        for own in filter(None, shape.windows):
            if own.size > window or own.sink > sink:
                raise UserError(
                    f"cache 'window' keeps {window} tokens and a sink of {sink}, but attention of this model sees a "
                    f"window of {own.size} and a sink of {own.sink}: give at least window={own.size}, sink={own.sink}"
                )
        self.window = Window(window, sink)
        slots = min(sink + window, max(1, max_len))
        self.pos = torch.full((n_rows, slots), -1, device=shape.device)
        self.layers = [WindowLayer(shape, n_rows, slots) for _ in range(shape.n_layers)]
        self.slot = 8 + shape.n_layers * shape.token_bytes

    def used(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot

    def place(self, new: Arrivals) -> Place:
        pos, (window, sink) = new.pos, self.window
        slots = torch.where(pos < sink, pos, sink + (pos - sink) % window)
        stays = (pos >= 0) & ((pos < sink) | (pos >= new.after[:, None] - window))
        b, t = stays.nonzero(as_tuple=True)
        old = of(self.pos, new.rows)
        before = old.clone() if pos.size(1) > 1 else old
        self.pos[b if new.rows is None else new.rows[b], slots[b, t]] = pos[b, t]
        held = torch.cat([before, pos], 1) if pos.size(1) > 1 else of(self.pos, new.rows)
        held = held[:, None]
        return Place(new._replace(real=(b, t)), slots, held, visible(pos, held, True, self.window))


class WindowLayer(RowLayer):
    """(row, K, slot, D)."""

    def __init__(self, shape: CacheShape, n_rows: int, slots: int) -> None:
        super().__init__()
        self.k, self.v = shape.storage(n_rows, slots)

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: the slots; before many tokens are written, they and what was there."""
        new, slots, pos, seen = self.step
        fed = new.clean(kv.k.to(self.k.dtype)), new.clean(kv.v.to(self.v.dtype))
        before = () if new.pos.size(1) == 1 else (of(self.k, new.rows), of(self.v, new.rows))
        both = [torch.cat([x, y], 2) for x, y in zip(before, fed, strict=False)]
        new.write(self.k, fed[0], slots)
        new.write(self.v, fed[1], slots)
        k, v = both or (of(self.k, new.rows), of(self.v, new.rows))
        return KV(k, v, pos, seen=seen)
