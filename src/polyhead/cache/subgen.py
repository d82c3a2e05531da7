"""Clustering cache (SubGen): merges older tokens with similar keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, StepTokens, broadcast_slots, select_rows, write_rows
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeFloat, PositiveInt
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import KV, visible


@CACHE.register("subgen")
class SubGenCache(RowCache):
    """Keep the newest tokens unchanged and older ones in clusters of similar keys, one slot per cluster.

    A token that is no longer recent joins the cluster with the nearest centre; if none is within ``radius``
    and there is a free slot, it starts a new cluster. The step itself attends to the slots before it and to
    all its new tokens. A cluster has no position, so models whose scores depend on distances are refused:
    those with sliding windows, and the position schemes alibi, t5, shaw and disentangled.

    By default this is a method after the paper, not the paper's own: centre and value of a cluster are the
    means of its tokens, not samples of them, and the paper's error bounds are not bounds of it. The paper's
    estimator is ``values: sampled``: the softmax normalizer is summed over one key of each cluster, drawn
    uniformly (t is 1 and the centre is the first key), the product with the values over s tokens, drawn in
    proportion to the squared norm of their values. Half of the slots that are not recent are clusters, the
    others samples. Both sums are unbiased; their quotient varies from draw to draw. The draws depend on
    positions alone, so outputs are reproducible. Recent tokens are exact with both.

    Equation: mean: softmax_c(q·k_c / √D + log n_c) v_c,  k_c and v_c means over the n_c tokens of cluster c
              sampled: z / τ,  τ = Σ_c n_c exp(q·k_c / √D),  z = Σ_{i ≤ s} μ / (s ‖v_i‖²) exp(q·k_i / √D) v_i,
              μ = Σ ‖v‖² over all tokens that are not recent
    Paper: Zandieh et al., 2024 (SubGen), alg. 1, is values: sampled; the means are ours
    When: long, repetitive texts
    Recipe: generation: {cache: {name: subgen, budget: 256}}
    Options:
      budget: slots per head, recent tokens and clusters together
      recent: number of newest tokens stored unchanged; default: half of the budget
      radius: distance between key and centre up to which they are merged even if there are free slots
      values: mean, the means of each cluster, or sampled, the paper's estimator
    """

    name = "subgen"

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        budget: PositiveInt = 256,
        recent: PositiveInt | None = None,
        radius: NonNegativeFloat = 0.0,
        values: Literal["mean", "sampled"] = "mean",
    ) -> None:
        super().__init__(shape, n_rows, max_len)
        recent = recent or max(1, budget // 2)
        if budget <= recent:
            raise UserError(
                f"cache 'subgen': a budget of {budget} slots must exceed its {recent} recent ones"
            )
        if shape.needs_distances or any(shape.windows):
            reason = "its position (alibi, t5, shaw, disentangled)" if shape.needs_distances else "its window"
            raise UserError(
                "cache 'subgen' merges tokens of several positions into one, but attention of this model "
                f"depends on distances, for {reason}: use cache 'h2o'"
            )
        recent, rest = min(recent, max_len), min(budget - recent, max_len)
        self.layers: list[SubGenLayer]
        if values == "mean":
            self.layers = [SubGenLayer(shape, n_rows, recent, rest, radius) for _ in range(shape.n_layers)]
            return
        if budget - recent < 2:
            raise UserError(
                f"cache 'subgen': a budget of {budget} slots with {recent} recent tokens leaves 1 slot, but "
                "values: sampled needs 2, for a cluster and for a sample"
            )
        n_samples = max(1, rest // 2)
        self.layers = [
            SampledSubGenLayer(shape, n_rows, recent, max(1, rest - n_samples), radius, n_samples, number)
            for number in shape.layer_numbers
        ]

    def used_bytes(self) -> int:
        return sum(layer.used_bytes() for layer in self.layers)


class SubGenLayer(RowLayer):
    """Slots of one layer, (row, K, slot, D): clusters in order of creation, then a ring of recent tokens.

    The ring has one slot more than ``recent``, so that the newest token is written before the oldest is
    clustered.
    """

    row_tensors: Mapping[str, int] = {"k": 0, "v": 0, "pos": -1, "count": 0}

    def __init__(
        self, shape: CacheShape, n_rows: int, recent: int, n_clusters: int, radius: float, n_samples: int = 0
    ) -> None:
        super().__init__()
        self.recent, self.ring_size, self.n_clusters, self.radius = recent, recent + 1, n_clusters, radius
        self.ring_start = n_clusters + n_samples
        self.k, self.v = shape.make_storage(n_rows, self.ring_start + self.ring_size)
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
        all_stored = [select_rows(getattr(self, name), tokens.rows) for name in self.row_tensors]
        new_kv = [tokens.zero_padding(x.to(self.k.dtype)) for x in (kv.k, kv.v)]
        pos_new = tokens.pos[:, None].expand(-1, self.pos.size(1), -1)
        leaving = tokens.len_before - 1 - self.recent  # a one-token step leaves one recent token too many
        self._cluster_tokens(all_stored, leaving)
        stored = all_stored[:4]
        if pos_new.size(2) == 1:
            slots, is_token = self.ring_start + pos_new % self.ring_size, pos_new >= 0
            for x, y in zip(stored, (*new_kv, pos_new, torch.ones_like(pos_new)), strict=True):
                index = broadcast_slots(slots, x)
                old_values = x.gather(2, index)
                x.scatter_(
                    2,
                    index,
                    torch.where(is_token if x.dim() == 3 else is_token[..., None], y.to(x.dtype), old_values),
                )
            k, v, pos, weight = *stored[:3], self._slot_weights(all_stored)
        else:
            seen = *stored[:3], self._slot_weights(all_stored)
            k, v, pos, weight = [
                torch.cat([x, y.to(x.dtype)], 2)
                for x, y in zip(seen, (*new_kv, pos_new, pos_new >= 0), strict=True)
            ]
            self._append_tokens(all_stored, new_kv, tokens)
        if tokens.rows is not None:  # the selected rows are copies
            for name, y in zip(self.row_tensors, all_stored, strict=True):
                write_rows(getattr(self, name), tokens.rows, y)
        log_weight = weight.where((pos >= 0) & (weight > 0), 1.0).log()
        return KV(k, v, pos, log_weight, visible(tokens.pos, pos, True))

    def _slot_weights(self, tensors: Sequence[Tensor]) -> Tensor:
        """How many tokens each slot (B, K, S) counts for."""
        return tensors[3]

    def _append_tokens(self, tensors: list[Tensor], new_kv: Sequence[Tensor], tokens: StepTokens) -> None:
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
            slot = self.ring_start + token_pos % self.ring_size
            for x, y in zip(tensors[:4], values, strict=True):
                old_values = x[rows, :, slot]
                is_token = (token_pos >= 0).view(-1, *[1] * (old_values.dim() - 1))
                x[rows, :, slot] = torch.where(is_token, y.to(x.dtype), old_values)
        self._cluster_tokens(tensors, tokens.len_after - 1 - self.recent)

    def _cluster_tokens(self, tensors: list[Tensor], positions: Tensor) -> None:
        """Move the tokens at positions (B,) from the ring, if they are in it, to clusters."""
        slot = self.ring_start + positions % self.ring_size
        is_in_ring = (positions >= 0) & (
            tensors[2][torch.arange(len(slot), device=slot.device), 0, slot] == positions
        )
        if not bool(is_in_ring.any()):
            return
        k, v, pos, count = tensors[:4]
        rows = torch.arange(len(k), device=k.device)
        # (B, K, D), (B, K, Dv)
        self._add_to_clusters(tensors, k[rows, :, slot], v[rows, :, slot], positions, is_in_ring)
        for x in (pos, count):
            x[rows, :, slot] = torch.where(is_in_ring[:, None], -1 if x is pos else 0, x[rows, :, slot]).to(
                x.dtype
            )

    def _add_to_clusters(
        self, tensors: list[Tensor], key: Tensor, value: Tensor, positions: Tensor, is_added: Tensor
    ) -> None:
        """Add keys (B, K, D) and values (B, K, Dv) to the means of clusters, in rows where ``is_added``."""
        k, v, pos, count = tensors
        target, _ = self._find_cluster(k, count, key)
        n = count.gather(2, target) + 1
        for x, y in ((k, key), (v, value)):
            mean = x.gather(2, broadcast_slots(target, x)).float()
            new_mean = mean + (y[:, :, None].float() - mean) / n[..., None]
            _write_slots(x, target, new_mean, is_added[:, None, None])
        _write_slots(pos, target, positions[:, None, None], is_added[:, None, None])
        _write_slots(count, target, n, is_added[:, None, None])

    def _find_cluster(self, centres: Tensor, count: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The cluster that a key (B, K, D) joins or starts, and whether it starts it, (B, K, 1) both."""
        C = self.n_clusters
        is_used = count[:, :, :C] > 0
        distances = (centres[:, :, :C].float() - key[:, :, None].float()).square().sum(-1)
        distance, nearest = distances.masked_fill(~is_used, torch.inf).min(-1)
        n_used = is_used.sum(-1)
        is_new = (distance > self.radius**2) & (n_used < C)
        return torch.where(is_new, n_used.clamp(max=C - 1), nearest)[..., None], is_new[..., None]


class SampledSubGenLayer(SubGenLayer):
    """The paper's estimator: slots of clusters, of samples, and a ring of recent tokens.

    A cluster's slot has one of its keys and no value, so that it counts in the normalizer alone. The samples
    must count in the product alone, but attention has one weight for both: they have the rounding error of
    the dtype as a factor of their weights, and its inverse as a factor of their values.
    """

    row_tensors: Mapping[str, int] = {**SubGenLayer.row_tensors, "centre": 0, "norm_sum": 0}

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        recent: int,
        n_clusters: int,
        radius: float,
        n_samples: int,
        layer_number: int,
    ) -> None:
        super().__init__(shape, n_rows, recent, n_clusters, radius, n_samples)
        self.n_samples, self.layer_number = n_samples, layer_number
        self.centre = torch.zeros_like(self.k[:, :, :n_clusters])  # the first key of each cluster
        # squared norms of the values of all tokens that are not recent
        self.norm_sum = torch.zeros_like(self.count[:, :, 0])
        self.value_scale = 1 / torch.finfo(shape.dtype).eps
        self.centre_bytes, self.sum_bytes = shape.head_dim * shape.dtype.itemsize, 4

    def used_bytes(self) -> int:
        n_centres, n_sums = (self.count[:, :, : self.n_clusters] > 0).sum(), (self.norm_sum > 0).sum()
        return super().used_bytes() + int(n_centres) * self.centre_bytes + int(n_sums) * self.sum_bytes

    def _slot_weights(self, tensors: Sequence[Tensor]) -> Tensor:
        count, norm_sum = tensors[3], tensors[5]
        is_sample = torch.zeros(count.size(2), dtype=torch.bool, device=count.device)
        is_sample[self.n_clusters : self.ring_start] = True
        return torch.where(is_sample, count * norm_sum[..., None], count)

    def _add_to_clusters(
        self, tensors: list[Tensor], key: Tensor, value: Tensor, positions: Tensor, is_added: Tensor
    ) -> None:
        """Count keys (B, K, D) in their clusters, and sample keys and values (B, K, Dv)."""
        k, v, pos, count, centre, norm_sum = tensors
        added, token_pos, key_slots = is_added[:, None, None], positions[:, None, None], key[:, :, None]
        uniforms = draw_uniforms(positions, self.layer_number, k.size(1), 1 + self.n_samples)
        target, is_new = self._find_cluster(centre, count, key)
        n = count.gather(2, target) + 1
        _write_slots(centre, target, key_slots, added & is_new)
        _write_slots(k, target, key_slots, added & (uniforms[..., :1] * n < 1))
        _write_slots(pos, target, token_pos, added)
        _write_slots(count, target, n, added)
        norm = value.float().square().sum(-1)
        total = norm_sum + norm
        is_drawn = added & (uniforms[..., 1:] * total[..., None] < norm[..., None])
        samples = torch.arange(self.n_clusters, self.ring_start, device=k.device).expand_as(is_drawn)
        _write_slots(k, samples, key_slots, is_drawn)
        _write_slots(v, samples, value[:, :, None] * self.value_scale, is_drawn)
        _write_slots(pos, samples, token_pos, is_drawn)
        _write_slots(count, samples, 1 / (self.value_scale * self.n_samples * norm[..., None]), is_drawn)
        norm_sum.copy_(torch.where(is_added[:, None], total, norm_sum))


def _write_slots(x: Tensor, slots: Tensor, values: Tensor, is_written: Tensor) -> None:
    """Write values into the slots (B, K, n) of x where ``is_written``; both broadcast to the slots."""
    index = broadcast_slots(slots, x)
    mask = is_written if x.dim() == 3 else is_written[..., None]
    x.scatter_(2, index, torch.where(mask, values.to(x.dtype), x.gather(2, index)))


def draw_uniforms(positions: Tensor, layer: int, n_heads: int, n: int) -> Tensor:
    """Random numbers (B, K, n) from 0 to 1 for positions (B,), the same in any batch: a hash (SplitMix64)."""
    streams = torch.arange(layer * n_heads * n, (layer + 1) * n_heads * n, device=positions.device)
    x = (positions[:, None] * 2**24 + streams) * (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ (x >> 30 & 2**34 - 1)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ (x >> 27 & 2**37 - 1)) * (0x94D049BB133111EB - 2**64)
    return ((x ^ (x >> 31)) >> 20 & 2**24 - 1).view(-1, n_heads, n) / 2.0**24
