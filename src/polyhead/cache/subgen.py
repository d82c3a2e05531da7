"""The cache of clusters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape
from polyhead.cache.rows import Arrivals, RowCache, RowLayer, along, of, put
from polyhead.errors import UserError
from polyhead.nn.kv import KV, visible
from polyhead.registry import CACHE


@CACHE.register("subgen")
class SubGenCache(RowCache):
    """The newest tokens as they are, older ones in clusters of near keys, each one slot that counts for all of them.

    A token that is no longer recent joins the cluster whose centre is nearest to its key; where none is within ``radius``
    it begins one, as long as there is room. Centre and value of a cluster are the means of its tokens, where the paper
    draws some of them. The step itself sees what was kept before it and all its new tokens. A cluster stands nowhere, so
    what depends on distances is refused: windows of the model's own, and positions alibi, t5, shaw and disentangled.

    Equation: softmax_c(q·k_c / √D + log n_c) v_c,  k_c and v_c means over the n_c tokens of cluster c
    Paper: Zandieh et al., 2024 (SubGen), alg. 1
    When: long texts that repeat themselves
    Recipe: generation: {cache: {name: subgen, budget: 256}}
    Options:
      budget: slots of a head, recent tokens and clusters together
      recent: newest tokens that are kept as they are; half of the budget if not given
      radius: distance between a key and a centre up to which they are one, even where there is room
    """

    name = "subgen"

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        budget: int = 256,
        recent: int | None = None,
        radius: float = 0.0,
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        recent = budget // 2 if recent is None else recent
        if recent < 1 or budget <= recent or not radius >= 0:
            raise UserError(
                f"cache 'subgen': a budget of {budget} slots with {recent} recent tokens and a radius of {radius}; wanted "
                "at least 1 recent token, a larger budget than that, and a radius of 0 or more"
            )
        if shape.distances or any(shape.windows):
            what = "its position (alibi, t5, shaw, disentangled)" if shape.distances else "its window"
            raise UserError(
                "cache 'subgen' merges tokens of many places into one, but attention of this model asks how far a token is "
                f"away, for {what}: use cache 'h2o'"
            )
        recent, clusters = min(recent, max_len), min(budget - recent, max_len)
        self.layers: list[SubGenLayer] = [
            SubGenLayer(shape, n_rows, recent, clusters, radius) for _ in range(shape.n_layers)
        ]

    def used(self) -> int:
        return sum(layer.used() for layer in self.layers)


class SubGenLayer(RowLayer):
    """(row, K, slot, D): clusters in the order they began, then a ring of recent tokens, one longer than is kept between
    steps, so that the newest comes in before the oldest leaves."""

    kept: Mapping[str, int] = {"k": 0, "v": 0, "pos": -1, "count": 0}

    def __init__(self, shape: CacheShape, n_rows: int, recent: int, clusters: int, radius: float) -> None:
        super().__init__()
        self.recent, self.ring, self.clusters, self.radius = recent, recent + 1, clusters, radius
        self.k, self.v = shape.storage(n_rows, clusters + self.ring)
        # of a cluster that of its newest token
        self.pos = torch.full(self.k.shape[:3], -1, device=shape.device)
        # tokens of a slot; fp32 counts to 16 million
        self.count = torch.zeros_like(self.pos, dtype=torch.float32)
        self.slot = (shape.head_dim + shape.v_dim) * shape.dtype.itemsize + 8 + 4

    def used(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out: what was kept and what is new."""
        new: Arrivals = self.step
        held = [of(x, new.rows) for x in (self.k, self.v, self.pos, self.count)]
        fed = new.clean(kv.k.to(self.k.dtype)), new.clean(kv.v.to(self.v.dtype))
        at = new.pos[:, None].expand(-1, self.pos.size(1), -1)
        leaving = new.before - 1 - self.recent  # what a step of one token left one too many
        self._leave(held, leaving)
        if at.size(2) == 1:
            slots, real = self.clusters + at % self.ring, at >= 0
            for x, y in zip(held, (*fed, at, torch.ones_like(at)), strict=True):
                index = along(slots, x)
                stays = x.gather(2, index)
                x.scatter_(
                    2, index, torch.where(real if x.dim() == 3 else real[..., None], y.to(x.dtype), stays)
                )
            seen = held
        else:
            seen = [torch.cat([x, y.to(x.dtype)], 2) for x, y in zip(held, (*fed, at, at >= 0), strict=True)]
            self._read(held, fed, new)
        if new.rows is not None:  # held was a copy
            for x, y in zip((self.k, self.v, self.pos, self.count), held, strict=True):
                put(x, new.rows, y)
        k, v, pos, count = seen
        return KV(k, v, pos, count.clamp(min=1).log(), visible(new.pos, pos, True))

    def _read(self, held: list[Tensor], fed: tuple[Tensor, Tensor], new: Arrivals) -> None:
        """Many tokens, one after the other: each takes the place of one that is no longer recent."""
        rows = torch.arange(len(new.pos), device=new.pos.device)
        for t in range(new.pos.size(1)):
            at = new.pos[:, t]
            self._leave(held, torch.where(at < 0, -1, at - self.ring))
            given = (fed[0][:, :, t], fed[1][:, :, t], at[:, None], torch.ones_like(at)[:, None])
            slot = self.clusters + at % self.ring
            for x, y in zip(held, given, strict=True):
                stays = x[rows, :, slot]
                real = (at >= 0).view(-1, *[1] * (stays.dim() - 1))
                x[rows, :, slot] = torch.where(real, y.to(x.dtype), stays)
        self._leave(held, new.after - 1 - self.recent)

    def _leave(self, held: list[Tensor], leaving: Tensor) -> None:
        """The tokens at positions (B,), where they are in the ring, go into clusters."""
        slot = self.clusters + leaving % self.ring
        there = (leaving >= 0) & (held[2][torch.arange(len(slot), device=slot.device), 0, slot] == leaving)
        if not bool(there.any()):
            return
        k, v, pos, count = held
        rows, C = torch.arange(len(k), device=k.device), self.clusters
        # (B, K, D), (B, K, Dv), (B, K)
        key, value, at = k[rows, :, slot], v[rows, :, slot], pos[rows, :, slot]
        begun = count[:, :, :C] > 0
        far = (k[:, :, :C].float() - key[:, :, None].float()).square().sum(-1).masked_fill(~begun, torch.inf)
        distance, nearest = far.min(-1)
        n_begun = begun.sum(-1)
        opens = (distance > self.radius**2) & (n_begun < C)
        target = torch.where(opens, n_begun.clamp(max=C - 1), nearest)[..., None]  # (B, K, 1)
        n = count.gather(2, target) + 1
        for x, y in ((k, key), (v, value)):
            index = along(target, x)
            mean = x.gather(2, index).float()
            moved = (mean + (y[:, :, None].float() - mean) / n[..., None]).to(x.dtype)
            x.scatter_(2, index, torch.where(there[:, None, None, None], moved, x.gather(2, index)))
        for x, y in ((pos, at[..., None]), (count, n)):
            x.scatter_(2, target, torch.where(there[:, None, None], y, x.gather(2, target)))
            x[rows, :, slot] = torch.where(there[:, None], -1 if x is pos else 0, x[rows, :, slot]).to(
                x.dtype
            )
