"""Attention as what it is in general: a mean of values, weighted by the similarity of query and key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.cache.base import LayerCache, looked_at
from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.attention.projections import Tie, keys_values, projections, refuse_scores
from polyhead.nn.exact import exactly, widened
from polyhead.nn.kv import KV, Watcher, fold, merge_heads, sight, split_heads, unfold
from polyhead.nn.position.base import Position
from polyhead.registry import ATTENTION, SIMILARITY


@ATTENTION.register("kernel")
class KernelAttention(nn.Module):
    """A mean of values, weighted by any similarity of query and key, every pair of them written out.

    With exp it is softmax attention, with a product of feature maps the slow form of linear attention. It keeps keys
    and values, so every cache for those serves it.

    Equation: out_i = sum_j sim(q_i, k_j) v_j / (sum_j sim(q_i, k_j) + eps)
    Paper: Tsai et al., 2019; Katharopoulos et al., 2020, eq. 3
    When: to try a similarity before looking for its feature map
    Recipe: model: {attention: {name: kernel, sim: square}}
    Options:
      sim: the similarity: exp, square, elu, relu, or a function of your own, "my_pkg.mine:sim"
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections
      eps: added to the sum, so that a query that sees nothing gives 0
    """

    def __init__(
        self,
        shape: Shape,
        position: Position,
        *,
        sim: str = "exp",
        tie: Tie = "none",
        bias: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        refuse_scores("kernel", position)
        if eps <= 0:
            raise UserError(f"eps keeps a sum of similarities from 0, so it is above 0, not {eps}")
        self.head_dim, self.v_head_dim = shape.head_dim, shape.v_head_dim
        self.causal, self.eps = shape.causal, eps
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections(shape, tie, bias)
        self.sim, self.position = SIMILARITY.get(sim), position
        self.watchers: list[Watcher] = []

    state = None  # it remembers keys and values

    def remember(self, x: Tensor, pos: Tensor | None) -> KV:
        """(B, S, C), (B, S) -> keys and values. Cross-attention does this once, on the encoder's output."""
        k, v = keys_values(x, self.k_proj, self.v_proj)
        k = self.position.rotate(split_heads(k, self.head_dim), pos)
        return KV(k, split_heads(v, self.v_head_dim), None if pos is None else pos[:, None])

    def forward(
        self, x: Tensor, pos: Tensor | None = None, cache: LayerCache | None = None, memory: KV | None = None
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over memory if there is one, else over x and what cache holds."""
        q = self.position.rotate(split_heads(self.q_proj(x), self.head_dim), pos)
        kv = self.remember(x, pos) if memory is None else memory
        alone = memory is None and cache is None
        kv, watch = looked_at(kv, cache, self.watchers)
        n, group = q.size(0) // kv.k.size(0), q.size(1) // kv.k.size(1)
        with exactly(x):
            similar = self.sim(fold(widened(q), n, group), widened(kv.k)).unflatten(2, (n, group, -1))
            mask = sight(pos, kv, x.size(1), self.causal, alone=alone)
            if mask is None and self.causal:
                mask = torch.ones(similar.shape[-2:], dtype=torch.bool, device=x.device).tril()[None, None]
            similar = counted(similar, kv, mask)
            weights = (similar / (similar.sum(-1, keepdim=True) + self.eps)).flatten(2, 4)
            for see in watch:
                see(unfold(weights, n, group))
            out = unfold(weights @ widened(kv.v), n, group)
        projected: Tensor = self.o_proj(merge_heads(out).to(x.dtype))
        return projected


def counted(similar: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
    """Similarities (B, K, n, group, T, S), 0 where ``mask`` (1|B, 1|K, T or 1, S) shows nothing, and as many times as a
    slot stands for tokens."""
    if kv.log_count is not None:
        similar = similar * kv.log_count.exp()[:, :, None, None, None]
    return similar if mask is None else similar.masked_fill(~mask[:, :, None, None], 0.0)
