"""Kernel attention: a mean of values, weighted by any similarity of query and key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.option_types import PositiveFloat
from polyhead.core.registry import ATTENTION, SIMILARITY
from polyhead.nn.attention.projections import (
    Projections,
    ShardedByHeads,
    Tie,
    build_projections,
    project_keys_values,
    reject_score_bias,
)
from polyhead.nn.cache import LayerCache
from polyhead.nn.device import at_least_fp32, no_autocast
from polyhead.nn.kv import (
    KV,
    GatherKV,
    WeightsHook,
    attention_mask,
    fold_groups,
    merge_heads,
    split_heads,
    unfold_groups,
)
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions


@ATTENTION.register("kernel")
class KernelAttention(ShardedByHeads, nn.Module):
    """A mean of values, weighted by any similarity of query and key, computed for every pair.

    With exp it is softmax attention, with a product of feature maps the quadratic form of linear attention.
    Its cache holds keys and values, so every cache for those supports it.

    Equation: out_i = sum_j sim(q_i, k_j) v_j / (sum_j sim(q_i, k_j) + eps)
    Paper: Tsai et al., 2019; Katharopoulos et al., 2020, eq. 3
    When: to try a similarity before looking for its feature map
    Recipe: model: {attention: {name: kernel, sim: square}}
    Options:
      sim: the similarity: exp, square, elu, relu, or a function of your own, "my_pkg.mine:sim"
      projections: none: queries, keys, values and output are not projected, q = k = v = x
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections
      eps: added to the sum, so that a query without visible slots gives 0
    """

    def __init__(
        self,
        shape: AttentionShape,
        position: Position,
        *,
        sim: str = "exp",
        projections: Projections = "all",
        tie: Tie = "none",
        bias: bool = True,
        eps: PositiveFloat = 1e-6,
    ) -> None:
        super().__init__()
        reject_score_bias("kernel", position)
        self.head_dim, self.v_head_dim = shape.head_dim, shape.v_head_dim
        self.causal, self.eps = shape.causal, eps
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = build_projections(shape, tie, bias, projections)
        self.sim, self.position = SIMILARITY.get(sim), position
        self.weights_hooks: list[WeightsHook] = []
        self.gather_kv: GatherKV | None = None  # of rows whose tokens are sharded over ranks

    state = None  # the cache holds keys and values

    def project_kv(self, x: Tensor, pos: Tensor | None, position: Position | None = None) -> KV:
        """(B, S, C), (B, S) -> keys and values. Called once by cross-attention, on the encoder's output."""
        k, v = project_keys_values(x, self.k_proj, self.v_proj)
        k = (self.position if position is None else position).rotate(split_heads(k, self.head_dim), pos)
        kv = KV(k, split_heads(v, self.v_head_dim), None if pos is None else pos[:, None])
        return kv if self.gather_kv is None else self.gather_kv(kv)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: KV | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over ``memory`` if given, else over x and the cache.

        ``position`` is the scheme prepared for this forward pass.
        """
        position = self.position if position is None else position
        q = position.rotate(split_heads(self.q_proj(x), self.head_dim), pos)
        kv = self.project_kv(x, pos, position) if memory is None else memory
        hooks: Sequence[WeightsHook] = self.weights_hooks
        if cache is not None:
            kv = cache.update(kv)
            hooks = hooks if cache.weights_hook is None else [*hooks, cache.weights_hook]
        own_tokens_only = memory is None and cache is None
        n, group = q.size(0) // kv.k.size(0), q.size(1) // kv.k.size(1)
        with no_autocast(x):
            similar = self.sim(fold_groups(at_least_fp32(q), n, group), at_least_fp32(kv.k)).unflatten(
                2, (n, group, -1)
            )
            mask = attention_mask(pos, kv, x.size(1), self.causal, None, own_tokens_only, documents)
            if mask is None and self.causal:
                mask = torch.ones(similar.shape[-2:], dtype=torch.bool, device=x.device).tril()[None, None]
            similar = mask_similarity(similar, kv, mask)
            weights = (similar / (similar.sum(-1, keepdim=True) + self.eps)).flatten(2, 4)
            for hook in hooks:
                hook(unfold_groups(weights, n, group))
            out = unfold_groups(weights @ at_least_fp32(kv.v), n, group)
        projected: Tensor = self.o_proj(merge_heads(out).to(x.dtype))
        return projected


def mask_similarity(similarity: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
    """Mask similarities and multiply them by the number of tokens that each slot represents.

    (B, K, n, group, T, S), ``mask`` (1|B, 1|K, T or 1, S) -> (B, K, n, group, T, S).
    """
    if kv.log_count is not None:
        similarity = similarity * kv.log_count.exp()[:, :, None, None, None]
    return similarity if mask is None else similarity.masked_fill(~mask[:, :, None, None], 0.0)
