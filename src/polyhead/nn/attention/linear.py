"""Linear attention: its cost grows linearly with the length of the text.

P features of a head's query or key; the other letters are those of nn/kv.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveFloat, PositiveInt
from polyhead.core.registry import ATTENTION, FEATURE_MAP
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
from polyhead.nn.kv import WeightsHook, fold_groups, merge_heads, split_heads, unfold_groups
from polyhead.nn.packed_rows import apply_per_document
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions, has_several_documents

Ratio = tuple[Tensor, ...]
"""Numerator and denominator in one tensor; in two if rotary positions act on the numerator's features."""


class LinearAttentionState(NamedTuple):
    """The source as linear attention stores it: of constant size for any length of text."""

    sums: Ratio  # (B, K, P, Dv + 1): sum_j phi(k_j) v_j^T and, as the last column, sum_j phi(k_j)
    keys: Tensor | None = None  # (B, K, S, P): the features, if hooks need the weights

    def select(self, rows: Tensor) -> LinearAttentionState:
        """Select batch rows, in the given order."""
        keys = None if self.keys is None else self.keys.index_select(0, rows)
        return LinearAttentionState(tuple(x.index_select(0, rows) for x in self.sums), keys)

    def cat_rows(self, other: LinearAttentionState) -> LinearAttentionState:
        """Concatenate the rows of both; missing keys of the shorter one are 0."""
        sums = tuple(torch.cat(pair) for pair in zip(self.sums, other.sums, strict=True))
        if self.keys is None or other.keys is None:
            return LinearAttentionState(sums)
        key_pair, longest = (self.keys, other.keys), max(self.keys.size(2), other.keys.size(2))
        return LinearAttentionState(
            sums, torch.cat([F.pad(x, (0, 0, 0, longest - x.size(2))) for x in key_pair])
        )

    def contiguous_for_decoding(self) -> LinearAttentionState:
        """The state itself, which needs no other layout."""
        return self


@ATTENTION.register("linear")
class LinearAttention(ShardedByHeads, nn.Module):
    """A product of feature maps in place of exp(q . k): the past is summed into a state of constant size.

    Training cost is linear in the length; a decoding row stores n_kv_heads states of P x (v_head_dim + 1)
    numbers for any length. Rotary positions (rope) act on the features of the numerator only (RoFormer, Su et
    al., 2021, eq. 19), so they must be above 0, as those of elu. Tokens come in the order of their positions.

    Equation: out_i = phi(q_i) sum_j phi(k_j) v_j^T / (phi(q_i) . sum_j phi(k_j) + eps)
    Paper: Katharopoulos et al., 2020, eq. 4-12 and 16-20
    When: texts are long, or memory for keys and values is short; its recall is worse than that of softmax
    Recipe: model: {attention: {name: linear, feature_map: elu}}
    Options:
      feature_map: phi: elu, relu, square, or a function of your own, "my_pkg.mine:map"
      projections: none: queries, keys, values and output are not projected, q = k = v = x
      tie: keys and values (kv), queries and keys (qk) or all three (qkv) share one projection
      bias: biases in the four projections
      chunk: tokens of a causal row that are computed pairwise at once; affects only speed and memory
      eps: added to the denominator, so that a query without visible slots gives 0
    """

    def __init__(
        self,
        shape: AttentionShape,
        position: Position,
        *,
        feature_map: str = "elu",
        projections: Projections = "all",
        tie: Tie = "none",
        bias: bool = True,
        chunk: PositiveInt = 64,
        eps: PositiveFloat = 1e-6,
    ) -> None:
        super().__init__()
        reject_score_bias("linear", position)
        self.head_dim, self.v_head_dim, self.n_kv_heads = shape.head_dim, shape.v_head_dim, shape.n_kv_heads
        self.causal, self.chunk, self.eps = shape.causal, chunk, eps
        self.phi, self.position = FEATURE_MAP.get(feature_map), position
        self.n_features = count_features(self.phi, feature_map, self.head_dim)
        self.is_rotary = position.kind == "heads"
        if self.is_rotary and self.n_features != self.head_dim:
            raise UserError(
                f"feature_map {feature_map!r} maps the {self.head_dim} features of a head to "
                f"{self.n_features}, and a rotary position (rope) requires equally many: use feature_map "
                "elu, or position sinusoidal"
            )
        if self.is_rotary and not has_positive_features(self.phi, self.head_dim):
            raise UserError(
                f"feature_map {feature_map!r} has features of 0 or less, and a rotary position (rope) turns "
                "only those of the numerator, which may be divided by 0: use feature_map elu, or position "
                "sinusoidal"
            )
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = build_projections(shape, tie, bias, projections)
        self.weights_hooks: list[WeightsHook] = []

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The state shapes of a decoding row: its sums."""
        widths = (self.v_head_dim, 1) if self.is_rotary else (self.v_head_dim + 1,)
        return tuple((self.n_kv_heads, self.n_features, width) for width in widths)

    def project_kv(self, x: Tensor, pos: Tensor | None) -> LinearAttentionState:
        """(B, S, C), (B, S) -> the source's sums. Called once by cross-attention, on the encoder's output."""
        k, v = project_keys_values(x, self.k_proj, self.v_proj)
        with no_autocast(x):
            keys = self._map_keys(k, pos, self.position)
            return LinearAttentionState(
                sum_key_values(keys, self._extend_values(v)), keys[0] if self.weights_hooks else None
            )

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: LinearAttentionState | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C): over ``memory`` if given, else over x and the cache.

        ``position`` is the scheme prepared for this forward pass. Hooks are called with the equivalent
        weights if the keys are available, not for a past that is summed into a state.
        """
        if memory is None and cache is None and pos is not None and has_several_documents(pos, documents):
            return apply_per_document(lambda h, at: self(h, at.pos, documents=at), x, pos, documents)
        position = self.position if position is None else position
        q = self.q_proj(x)
        k, v = project_keys_values(x, self.k_proj, self.v_proj) if memory is None else (None, None)
        with no_autocast(x):
            queries = self._map_features(q, pos, position)
            if memory is not None:
                out, hook_keys = attend_sums(queries, memory.sums), memory.keys
            else:
                assert k is not None and v is not None
                keys = self._map_keys(k, pos, position)
                out = self._attend(queries, keys, self._extend_values(v), cache)
                hook_keys = keys[0] if cache is None else None
            numerator, denominator = out[..., :-1], out[..., -1:] + self.eps
            if hook_keys is not None:
                for hook in list(self.weights_hooks):
                    hook(
                        compute_pair_weights(queries[0], hook_keys, memory is None and self.causal)
                        / denominator
                    )
        projected: Tensor = self.o_proj(merge_heads(numerator / denominator).to(x.dtype))
        return projected

    def _attend(self, q: Ratio, k: Ratio, v: Ratio, cache: LayerCache | None) -> Tensor:
        """Attend to the row so far: (B, H, T, P), (B, K, T, P), (B, K, T, Dv + 1) -> (B, H, T, Dv + 1)."""
        past = tuple(x.new_zeros(()) for x in k) if cache is None else cache.state
        if not self.causal or q[0].size(2) == 1:  # every query attends to everything
            sums = tuple(a + b for a, b in zip(past, sum_key_values(k, v), strict=True))
            out = attend_sums(q, sums)
        else:
            runs = [attend_chunks(*part, self.chunk) for part in zip(q, k, v, past, strict=True)]
            out, sums = torch.cat([run[0] for run in runs], -1), tuple(run[1] for run in runs)
        if cache is not None:
            cache.state = sums
        return out

    def _map_features(self, x: Tensor, pos: Tensor | None, position: Position) -> Ratio:
        """(B, T, H * D) -> phi (B, H, T, P), rotated for the numerator and unrotated for the denominator."""
        features: Tensor = self.phi(at_least_fp32(split_heads(x, self.head_dim)))
        if not self.is_rotary:
            return (features,)
        # scale both, or a scheme's attention factor would scale the output
        return position.rotate(features, pos), position.scale_only(features)

    def _map_keys(self, k: Tensor, pos: Tensor | None, position: Position) -> Ratio:
        """Features of the keys; 0 at padding, so that it gets no weight."""
        keys = self._map_features(k, pos, position)
        return keys if pos is None else tuple(x.masked_fill((pos < 0)[:, None, :, None], 0) for x in keys)

    def _extend_values(self, v: Tensor) -> Ratio:
        """(B, T, K * Dv) -> values (B, K, T, Dv) for the numerator, and 1 for the denominator."""
        values = at_least_fp32(split_heads(v, self.v_head_dim))
        if self.is_rotary:
            return values, torch.ones_like(values[..., :1])
        return (F.pad(values, (0, 1), value=1.0),)


def sum_key_values(k: Ratio, v: Ratio) -> Ratio:
    """sum_j phi(k_j) v_j^T: (B, K, S, P), (B, K, S, X) -> (B, K, P, X)."""
    return tuple(a.mT @ b for a, b in zip(k, v, strict=True))


def attend_sums(q: Ratio, sums: Ratio) -> Tensor:
    """phi(q) times sums that all queries share: (N, H, T, P), (B, K, P, X) -> (N, H, T, X).

    Row i uses the sums of row i // (N / B).
    """
    n, group = q[0].size(0) // sums[0].size(0), q[0].size(1) // sums[0].size(1)
    return torch.cat(
        [unfold_groups(fold_groups(a, n, group) @ b, n, group) for a, b in zip(q, sums, strict=True)], -1
    )


def attend_chunks(q: Tensor, k: Tensor, v: Tensor, past_sums: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """phi(q_i) sum_{j <= i} phi(k_j) v_j^T for every i, and the sum over all j.

    (B, H, T, P), (B, K, T, P), (B, K, T, X), past (B, K, P, X) -> (B, H, T, X), (B, K, P, X) (Katharopoulos
    et al., 2020, eq. 9-11). Within a chunk of c tokens every pair is computed; the prefix of each chunk is
    stored as a sum: T (c + P X / c) numbers in all.
    """
    T, K, group, chunk = q.size(2), k.size(1), q.size(1) // k.size(1), min(chunk, q.size(2))
    # (., ., T / c, c, .)
    q, k, v = (F.pad(x, (0, 0, 0, -T % chunk)).unflatten(2, (-1, chunk)) for x in (q, k, v))
    q = q.unflatten(1, (K, group)).transpose(2, 3).flatten(3, 4)  # (B, K, T / c, group * c, P)
    parts = k.mT @ v
    sums = torch.cat([past_sums.expand_as(parts[:, :, 0])[:, :, None], parts], 2).cumsum(2)
    pairs = (q @ k.mT).unflatten(3, (group, chunk)).tril().flatten(3, 4)
    out = (pairs @ v + q @ sums[:, :, :-1]).unflatten(3, (group, chunk))
    return out.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, :T], sums[:, :, -1]


def compute_pair_weights(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """phi(q) . phi(k) for every visible pair: (N, H, T, P), (B, K, S, P) -> (N, H, T, S)."""
    n, group = len(q) // len(k), q.size(1) // k.size(1)
    products = unfold_groups(fold_groups(q, n, group) @ k.mT, n, group)
    return products.tril() if causal else products


def has_positive_features(phi: object, head_dim: int) -> bool:
    """Whether all features of a feature map are above 0, for inputs of either sign."""
    assert callable(phi)
    x = torch.linspace(-8, 8, 64 * head_dim, device="cpu").view(1, 1, 64, head_dim)
    return bool((phi(x) > 0).all())


def count_features(phi: object, name: str, head_dim: int) -> int:
    """The number P of features of a feature map; a UserError if it is not a valid one."""
    assert callable(phi)
    x = torch.zeros(1, 2, 3, head_dim, device="cpu")
    try:
        features = phi(x)
    except Exception as error:
        raise UserError(
            f"feature_map {name!r} fails on a tensor of shape {tuple(x.shape)}: {error}"
        ) from None
    if not isinstance(features, Tensor) or features.shape[:-1] != x.shape[:-1]:
        description = (
            f"shape {tuple(features.shape)}"
            if isinstance(features, Tensor)
            else f"a {type(features).__name__}"
        )
        raise UserError(
            f"feature_map {name!r} maps a tensor (1, 2, 3, {head_dim}) to {description}, expected (1, 2, 3, "
            "any)"
        )
    return features.size(-1)
