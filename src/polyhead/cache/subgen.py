"""Clustering cache (SubGen): merges older tokens with similar keys."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, broadcast_slots, select_rows, write_rows
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, visible


@CACHE.register("subgen")
class SubGenCache(RowCache):
    """Keep the newest tokens unchanged and older ones in clusters of similar keys, one slot per cluster.

    A token that is no longer recent joins the cluster with the nearest centre; if none is within ``radius``
    and there is a free slot, it starts a new cluster. Centre and value of a cluster are the means of its
    tokens, whereas the paper samples some of them. The step itself attends to the slots before it and to all
    its new tokens. A cluster has no position, so models whose scores depend on distances are refused: those
    with sliding windows, and the position schemes alibi, t5, shaw and disentangled.

    Equation: softmax_c(q·k_c / √D + log n_c) v_c,  k_c and v_c means over the n_c tokens of cluster c
    Paper: Zandieh et al., 2024 (SubGen), alg. 1
    When: long, repetitive texts
    Recipe: generation: {cache: {name: subgen, budget: 256}}
    Options:
      budget: slots per head, recent tokens and clusters together
      recent: number of newest tokens stored unchanged; default: half of the budget
      radius: distance between key and centre up to which they are merged even if there are free slots
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
                f"cache 'subgen': a budget of {budget} slots with {recent} recent tokens and a radius of "
                f"{radius}; expected at least 1 recent token, a budget above that, and a radius of 0 or more"
            )
        if shape.needs_distances or any(shape.windows):
            reason = "its position (alibi, t5, shaw, disentangled)" if shape.needs_distances else "its window"
            raise UserError(
                "cache 'subgen' merges tokens of several positions into one, but attention of this model "
                f"depends on distances, for {reason}: use cache 'h2o'"
            )
        recent, clusters = min(recent, max_len), min(budget - recent, max_len)
        self.layers: list[SubGenLayer] = [
            SubGenLayer(shape, n_rows, recent, clusters, radius) for _ in range(shape.n_layers)
        ]

    def used_bytes(self) -> int:
        return sum(layer.used_bytes() for layer in self.layers)


class SubGenLayer(RowLayer):
    """Slots of one layer, (row, K, slot, D): clusters in order of creation, then a ring of recent tokens.

    The ring has one slot more than ``recent``, so that the newest token is written before the oldest is
    clustered.
    """

    row_tensors: Mapping[str, int] = {"k": 0, "v": 0, "pos": -1, "count": 0}

    def __init__(self, shape: CacheShape, n_rows: int, recent: int, n_clusters: int, radius: float) -> None:
        super().__init__()
        self.recent, self.ring_size, self.n_clusters, self.radius = recent, recent + 1, n_clusters, radius
        self.k, self.v = shape.make_storage(n_rows, n_clusters + self.ring_size)
        # the position of a cluster is that of its newest token
        self.pos = torch.full(self.k.shape[:3], -1, device=shape.device)
        # tokens per slot; fp32 counts to 16 million
        self.count = torch.zeros_like(self.pos, dtype=torch.float32)
        self.slot_bytes = (shape.head_dim + shape.v_dim) * shape.dtype.itemsize + 8 + 4

    def used_bytes(self) -> int:
        return int((self.pos >= 0).sum()) * self.slot_bytes

    @torch.no_grad()
    def update(self, kv: KV) -> KV:
        """Store (B, K, T, D) and return (B, K, S, D): the stored and the new tokens."""
        tokens: StepTokens = self.step
        stored = [select_rows(x, tokens.rows) for x in (self.k, self.v, self.pos, self.count)]
        new_kv = tokens.zero_padding(kv.k.to(self.k.dtype)), tokens.zero_padding(kv.v.to(self.v.dtype))
        pos_new = tokens.pos[:, None].expand(-1, self.pos.size(1), -1)
        leaving = tokens.len_before - 1 - self.recent  # a one-token step leaves one recent token too many
        self._cluster_tokens(stored, leaving)
        if pos_new.size(2) == 1:
            slots, is_token = self.n_clusters + pos_new % self.ring_size, pos_new >= 0
            for x, y in zip(stored, (*new_kv, pos_new, torch.ones_like(pos_new)), strict=True):
                index = broadcast_slots(slots, x)
                old_values = x.gather(2, index)
                x.scatter_(
                    2,
                    index,
                    torch.where(is_token if x.dim() == 3 else is_token[..., None], y.to(x.dtype), old_values),
                )
            joined = stored
        else:
            joined = [
                torch.cat([x, y.to(x.dtype)], 2)
                for x, y in zip(stored, (*new_kv, pos_new, pos_new >= 0), strict=True)
            ]
            self._append_tokens(stored, new_kv, tokens)
        if tokens.rows is not None:  # the selected rows are copies
            for x, y in zip((self.k, self.v, self.pos, self.count), stored, strict=True):
                write_rows(x, tokens.rows, y)
        k, v, pos, count = joined
        return KV(k, v, pos, count.clamp(min=1).log(), visible(tokens.pos, pos, True))

    def _append_tokens(
        self, tensors: list[Tensor], new_kv: tuple[Tensor, Tensor], tokens: StepTokens
    ) -> None:
        """Store several tokens in turn; each takes the slot of a token that is no longer recent."""
        rows = torch.arange(len(tokens.pos), device=tokens.pos.device)
        for t in range(tokens.pos.size(1)):
            token_pos = tokens.pos[:, t]
            self._cluster_tokens(tensors, torch.where(token_pos < 0, -1, token_pos - self.ring_size))
            values = (
                new_kv[0][:, :, t],
                new_kv[1][:, :, t],
                token_pos[:, None],
                torch.ones_like(token_pos)[:, None],
            )
            slot = self.n_clusters + token_pos % self.ring_size
            for x, y in zip(tensors, values, strict=True):
                old_values = x[rows, :, slot]
                is_token = (token_pos >= 0).view(-1, *[1] * (old_values.dim() - 1))
                x[rows, :, slot] = torch.where(is_token, y.to(x.dtype), old_values)
        self._cluster_tokens(tensors, tokens.len_after - 1 - self.recent)

    def _cluster_tokens(self, tensors: list[Tensor], positions: Tensor) -> None:
        """Move the tokens at positions (B,) from the ring, if they are in it, to clusters."""
        slot = self.n_clusters + positions % self.ring_size
        is_in_ring = (positions >= 0) & (
            tensors[2][torch.arange(len(slot), device=slot.device), 0, slot] == positions
        )
        if not bool(is_in_ring.any()):
            return
        k, v, pos, count = tensors
        rows, C = torch.arange(len(k), device=k.device), self.n_clusters
        # (B, K, D), (B, K, Dv), (B, K)
        key, value, token_pos = k[rows, :, slot], v[rows, :, slot], pos[rows, :, slot]
        is_used = count[:, :, :C] > 0
        distances = (
            (k[:, :, :C].float() - key[:, :, None].float()).square().sum(-1).masked_fill(~is_used, torch.inf)
        )
        distance, nearest = distances.min(-1)
        n_used = is_used.sum(-1)
        is_new_cluster = (distance > self.radius**2) & (n_used < C)
        target = torch.where(is_new_cluster, n_used.clamp(max=C - 1), nearest)[..., None]  # (B, K, 1)
        n = count.gather(2, target) + 1
        for x, y in ((k, key), (v, value)):
            index = broadcast_slots(target, x)
            mean = x.gather(2, index).float()
            new_mean = (mean + (y[:, :, None].float() - mean) / n[..., None]).to(x.dtype)
            x.scatter_(2, index, torch.where(is_in_ring[:, None, None, None], new_mean, x.gather(2, index)))
        for x, y in ((pos, token_pos[..., None]), (count, n)):
            x.scatter_(2, target, torch.where(is_in_ring[:, None, None], y, x.gather(2, target)))
            x[rows, :, slot] = torch.where(is_in_ring[:, None], -1 if x is pos else 0, x[rows, :, slot]).to(
                x.dtype
            )
