"""Attention whose cost grows with the length of the text, not with its square.

P features of a head's query or key; the other letters are those of nn/kv.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.attention.projections import Tie, keys_values, projections, refuse_scores
from polyhead.nn.exact import exactly, widened
from polyhead.nn.kv import Watcher, fold, merge_heads, split_heads, unfold
from polyhead.nn.position.base import Position
from polyhead.nn.rows import documents_apart, several_documents
from polyhead.registry import ATTENTION, FEATURE_MAP

Ratio = tuple[Tensor, ...]
"""What numerator and denominator have, in one tensor; or, where positions turn the features of the numerator, each in its own."""


class Folded(NamedTuple):
    """A source as linear attention keeps it: of a size that does not grow with the text."""

    sums: Ratio  # (B, K, P, Dv + 1): sum_j phi(k_j) v_j^T and, as the last column, sum_j phi(k_j)
    keys: Tensor | None = None  # (B, K, S, P): the features, where somebody wants to see the weights

    def select(self, rows: Tensor) -> Folded:
        """The given batch rows, in that order."""
        keys = None if self.keys is None else self.keys.index_select(0, rows)
        return Folded(tuple(x.index_select(0, rows) for x in self.sums), keys)

    def join(self, other: Folded) -> Folded:
        """The rows of both, in this order; keys that only the longer one has are 0 in the other's rows."""
        sums = tuple(torch.cat(pair) for pair in zip(self.sums, other.sums, strict=True))
        if self.keys is None or other.keys is None:
            return Folded(sums)
        both, longest = (self.keys, other.keys), max(self.keys.size(2), other.keys.size(2))
        return Folded(sums, torch.cat([F.pad(x, (0, 0, 0, longest - x.size(2))) for x in both]))

    def kept(self) -> Folded:
        """The same."""
        return self


@ATTENTION.register("linear")
class LinearAttention(nn.Module):
    """A product of feature maps in the place of exp(q . k), so that the past folds into a state of constant size.

    Training costs what the length costs, not its square; a decoding row keeps n_kv_heads states of P x (v_head_dim + 1)
    numbers, however long its text is. Positions that turn heads (rope) turn the features of the numerator alone
    (RoFormer, Su et al., 2021, eq. 19). Tokens come in the order of their positions.

    Equation: out_i = phi(q_i) sum_j phi(k_j) v_j^T / (phi(q_i) . sum_j phi(k_j) + eps)
    Paper: Katharopoulos et al., 2020, eq. 4-12 and 16-20
    When: texts are long, or memory for keys and values is short; it recalls less well than softmax
    Recipe: model: {attention: {name: linear, feature_map: elu}}
    Options:
      feature_map: phi: elu, relu, square, or a function of your own, "my_pkg.mine:map"
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections
      chunk: tokens of a causal row that are read at once, each pair written out; changes speed and memory alone
      eps: added to the denominator, so that a query that sees nothing gives 0
    """

    def __init__(
        self,
        shape: Shape,
        position: Position,
        *,
        feature_map: str = "elu",
        tie: Tie = "none",
        bias: bool = True,
        chunk: int = 64,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        refuse_scores("linear", position)
        if chunk < 1:
            raise UserError(f"chunk of attention 'linear' is {chunk}, wanted at least 1 token")
        if eps <= 0:
            raise UserError(f"eps keeps a denominator from 0, so it is above 0, not {eps}")
        self.head_dim, self.v_head_dim, self.n_kv_heads = shape.head_dim, shape.v_head_dim, shape.n_kv_heads
        self.causal, self.chunk, self.eps = shape.causal, chunk, eps
        self.phi, self.position = FEATURE_MAP.get(feature_map), position
        self.n_features = n_features(self.phi, feature_map, self.head_dim)
        self.turned = position.acts_on == "heads"
        if self.turned and self.n_features != self.head_dim:
            raise UserError(
                f"feature_map {feature_map!r} makes {self.n_features} features of a head's {self.head_dim}, and a "
                "position that turns heads (rope) turns only those: take feature_map elu, or position sinusoidal"
            )
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections(shape, tie, bias)
        self.watchers: list[Watcher] = []

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """What a decoding row keeps: its sums."""
        widths = (self.v_head_dim, 1) if self.turned else (self.v_head_dim + 1,)
        return tuple((self.n_kv_heads, self.n_features, width) for width in widths)

    def remember(self, x: Tensor, pos: Tensor | None) -> Folded:
        """(B, S, C), (B, S) -> its sums. Cross-attention does this once, on the encoder's output."""
        k, v = keys_values(x, self.k_proj, self.v_proj)
        with exactly(x):
            keys = self._keys(k, pos)
            return Folded(total(keys, self._values(v)), keys[0] if self.watchers else None)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: Folded | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over memory if there is one, else over x and what cache holds.

        Watchers see the weights that the sums stand for, where the keys are there to be seen: not those of a past that
        is folded into a state.
        """
        if memory is None and cache is None and pos is not None and several_documents(pos):
            return documents_apart(self, x, pos)
        q = self.q_proj(x)
        k, v = keys_values(x, self.k_proj, self.v_proj) if memory is None else (None, None)
        with exactly(x):
            queries = self._features(q, pos)
            if memory is not None:
                out, seen = read(queries, memory.sums), memory.keys
            else:
                assert k is not None and v is not None
                keys, seen = self._keys(k, pos), None
                out = self._over(queries, keys, self._values(v), cache)
                seen = keys[0] if cache is None else None
            above, below = out[..., :-1], out[..., -1:] + self.eps
            if seen is not None:
                for see in list(self.watchers):
                    see(weights(queries[0], seen, memory is None and self.causal) / below)
        projected: Tensor = self.o_proj(merge_heads(above / below).to(x.dtype))
        return projected

    def _over(self, q: Ratio, k: Ratio, v: Ratio, cache: LayerCache | None) -> Tensor:
        """What queries gather of the row so far: (B, H, T, P), (B, K, T, P), (B, K, T, Dv + 1) -> (B, H, T, Dv + 1)."""
        past = tuple(x.new_zeros(()) for x in k) if cache is None else cache.state
        if not self.causal or q[0].size(2) == 1:  # then every query sees all there is
            sums = tuple(a + b for a, b in zip(past, total(k, v), strict=True))
            out = read(q, sums)
        else:
            runs = [running(*part, self.chunk) for part in zip(q, k, v, past, strict=True)]
            out, sums = torch.cat([run[0] for run in runs], -1), tuple(run[1] for run in runs)
        if cache is not None:
            cache.state = sums
        return out

    def _features(self, x: Tensor, pos: Tensor | None) -> Ratio:
        """(B, T, H * D) -> phi (B, H, T, P), for the numerator as position turns it and for the denominator unturned."""
        features: Tensor = self.phi(widened(split_heads(x, self.head_dim)))
        if not self.turned:
            return (features,)
        # both as large, or what a scheme makes sharper would come out larger
        return self.position.rotate(features, pos), self.position.scaled(features)

    def _keys(self, k: Tensor, pos: Tensor | None) -> Ratio:
        """The same of keys; those of padding have no features at all, and so no weight."""
        keys = self._features(k, pos)
        return keys if pos is None else tuple(x.masked_fill((pos < 0)[:, None, :, None], 0) for x in keys)

    def _values(self, v: Tensor) -> Ratio:
        """(B, T, K * Dv) -> values (B, K, T, Dv) for the numerator, and 1 for the denominator."""
        values = widened(split_heads(v, self.v_head_dim))
        if self.turned:
            return values, torch.ones_like(values[..., :1])
        return (F.pad(values, (0, 1), value=1.0),)


def total(k: Ratio, v: Ratio) -> Ratio:
    """sum_j phi(k_j) v_j^T: (B, K, S, P), (B, K, S, X) -> (B, K, P, X)."""
    return tuple(a.mT @ b for a, b in zip(k, v, strict=True))


def read(q: Ratio, sums: Ratio) -> Tensor:
    """phi(q) over sums that all queries see: (N, H, T, P), (B, K, P, X) -> (N, H, T, X); row i reads row i // (N / B)."""
    n, group = q[0].size(0) // sums[0].size(0), q[0].size(1) // sums[0].size(1)
    return torch.cat([unfold(fold(a, n, group) @ b, n, group) for a, b in zip(q, sums, strict=True)], -1)


def running(q: Tensor, k: Tensor, v: Tensor, past: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """phi(q_i) sum_{j <= i} phi(k_j) v_j^T for every i, and the sum over all j (Katharopoulos et al., 2020, eq. 9-11).

    (B, H, T, P), (B, K, T, P), (B, K, T, X), past (B, K, P, X) -> (B, H, T, X), (B, K, P, X). Within a chunk of c tokens
    every pair is written out; what came before a chunk is a sum, kept for each chunk: T (c + P X / c) numbers in all.
    """
    T, K, group, chunk = q.size(2), k.size(1), q.size(1) // k.size(1), min(chunk, q.size(2))
    # (., ., T / c, c, .)
    q, k, v = (F.pad(x, (0, 0, 0, -T % chunk)).unflatten(2, (-1, chunk)) for x in (q, k, v))
    q = q.unflatten(1, (K, group)).transpose(2, 3).flatten(3, 4)  # (B, K, T / c, group * c, P)
    parts = k.mT @ v
    sums = torch.cat([past.expand_as(parts[:, :, 0])[:, :, None], parts], 2).cumsum(2)
    pairs = (q @ k.mT).unflatten(3, (group, chunk)).tril().flatten(3, 4)
    out = (pairs @ v + q @ sums[:, :, :-1]).unflatten(3, (group, chunk))
    return out.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, :T], sums[:, :, -1]


def weights(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """phi(q) . phi(k) for every pair that is seen: (N, H, T, P), (B, K, S, P) -> (N, H, T, S)."""
    n, group = len(q) // len(k), q.size(1) // k.size(1)
    products = unfold(fold(q, n, group) @ k.mT, n, group)
    return products.tril() if causal else products


def n_features(phi: object, name: str, head_dim: int) -> int:
    """P of a feature map; a UserError where it is none."""
    assert callable(phi)
    given = torch.zeros(1, 2, 3, head_dim, device="cpu")
    try:
        made = phi(given)
    except Exception as error:
        raise UserError(
            f"feature_map {name!r} fails on a tensor of shape {tuple(given.shape)}: {error}"
        ) from None
    if not isinstance(made, Tensor) or made.shape[:-1] != given.shape[:-1]:
        came = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
        raise UserError(
            f"feature_map {name!r} makes {came} of a tensor (1, 2, 3, {head_dim}), wanted (1, 2, 3, any)"
        )
    return made.size(-1)
