"""Disentangled attention of DeBERTa: learned relative positions, projected by the attention itself."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeFloat, TwoOrMore
from polyhead.core.registry import POSITION
from polyhead.nn.dropout import Dropout
from polyhead.nn.kv import KV
from polyhead.nn.norm import LayerNorm
from polyhead.nn.position.base import ProjectQK
from polyhead.nn.position.relative import PairPosition, ScoreShape, compute_distances, look_up
from polyhead.nn.shard_plan import ShardPlan


@POSITION.register("disentangled")
class DisentangledPosition(PairPosition):
    """A learned vector for each distance; every layer projects it to a query and a key, like a token.

    Queries attend to distances (content to position), and distances to keys (position to content). All
    layers share the vectors but have their own projections. Scores are sums of three products, and attention
    divides them by √(3D) if its ``scale`` is not given. Half of the span has one distance per bucket; the
    other buckets widen up to ``max_distance``. On a CPU, vectors that no pair of a batch needs are not
    projected; on a GPU, those of a padded batch are. In a decoder they are projected again at every step.

    Equation: (q_i·k_j + q_i·k'_{δ(i,j)} + k_j·q'_{δ(i,j)}) / √(3D),  q' = W_q N(P), k' = W_k N(P),
              P learned, (2 span, C)
    Paper: He et al., 2021a, eq. 4; buckets, norm and shared projections: He et al., 2021b (DeBERTa-v2, v3)
    When: text and pair classification with DeBERTa; more expensive than the other schemes
    Recipe: model: {position: {name: disentangled, span: 64, max_distance: 256}}
    Options:
      span: vectors in each direction; larger distances use the last
      max_distance: tokens from which on all distances are equal; without, each in the span has its own vector
      terms: products besides content to content: both, content to position (c2p), position to content (p2c)
      norm_eps: epsilon of the layer norm on the vectors; without, there is no norm
      dropout: probability, on the vectors
    """

    shard_plan = ShardPlan(partial_grads=("weight", "norm"))

    def __init__(
        self,
        shape: AttentionShape,
        *,
        span: TwoOrMore = 256,
        max_distance: int | None = 512,
        terms: Literal["both", "c2p", "p2c"] = "both",
        norm_eps: NonNegativeFloat | None = 1e-7,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if max_distance is not None and max_distance < span // 2 + 2:
            raise UserError(
                f"max_distance of disentangled is {max_distance}; a span of {span} distinguishes all "
                f"distances up to {span // 2}, so it must be at least {span // 2 + 2}"
            )
        self.span, self.max_distance, self.terms = span, max_distance, terms
        self.n_products = 3 if terms == "both" else 2
        self.weight = nn.Parameter(torch.empty(2 * span, shape.d_model))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)
        self.norm = None if norm_eps is None else LayerNorm(shape.d_model, eps=norm_eps)
        self.dropout = Dropout(dropout)

    def scores(
        self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None, project: ProjectQK
    ) -> Tensor | None:
        """(B, H, T, D) over kv -> (B, H, T, S)."""
        first, *rest = self.compute_terms(q, kv, pos, scale, project).values()
        return first + rest[0] if rest else first

    def compute_terms(
        self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None, project: ProjectQK
    ) -> dict[str, Tensor]:
        """The scaled products with distances by name: ``c2p`` of the queries, ``p2c`` of the keys.

        (B, H, T, D) over kv -> (B, H, T, S) each.
        """
        index, first, stop = self.pair_table(q, kv, pos)
        vectors = self.dropout(self.weight if self.norm is None else self.norm(self.weight))[first:stop]
        scale, groups = q.size(-1) ** -0.5 if scale is None else scale, kv.k.size(1)
        queries, keys = (x * scale for x in project(vectors))  # (H, R, D), (K, R, D)
        terms = {}
        if self.terms != "p2c":
            products = q.unflatten(1, (groups, -1)) @ keys[:, None].mT
            terms["c2p"] = look_up(products.flatten(1, 2), index)
        if self.terms != "c2p":
            products = kv.k[:, :, None] @ queries.unflatten(0, (groups, -1)).mT
            terms["p2c"] = look_up(products.flatten(1, 2), index.mT).mT
        return terms

    def compute_pairs(
        self, q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape, dtype: torch.dtype
    ) -> tuple[Tensor, int, int]:
        """The range of vectors in use, and the index in it for each pair: (1|B, 1|H, T, S), start, stop."""
        batch_max = find_max_distance(q_pos, k_pos, score_shape)
        used = (
            range(2 * self.span)
            if batch_max is None
            else near_index_range(batch_max, self.span, self.max_distance)
        )
        index = (
            log_bucket_index(-compute_distances(q_pos, k_pos, score_shape), self.span, self.max_distance)
            + self.span
        )
        return index.clamp(used.start, used.stop - 1) - used.start, used.start, used.stop


def find_max_distance(q_pos: Tensor | None, k_pos: Tensor | None, score_shape: ScoreShape) -> int | None:
    """The largest distance that can occur; None if it is unknown without a device synchronisation."""
    if torch.compiler.is_compiling():  # the graph must work for any values
        return None
    positions = [pos for pos in (q_pos, k_pos) if pos is not None and pos.numel()]
    if any(pos.device.type != "cpu" for pos in positions):
        return None
    return max(score_shape.queries - 1, score_shape.slots - 1, *(int(pos.max()) for pos in positions))


def near_index_range(distance: int, span: int, max_distance: int | None) -> range:
    """Rows of the table that distances up to ``distance`` may use."""
    middle = span // 2
    if max_distance is not None and distance > middle:
        log = math.log(distance / middle) / math.log((max_distance - 1) / middle)
        distance = middle + math.ceil(log * (middle - 1)) + 1  # + 1 for fp32 rounding
    return range(max(0, span - distance), min(2 * span, span + distance + 1))


def log_bucket_index(distance: Tensor, span: int, max_distance: int | None) -> Tensor:
    """The bucket of each distance q - k, -span to span - 1, in the fp32 arithmetic of the original code."""
    if max_distance is None:
        return distance.clamp(-span, span - 1)
    middle, size = span // 2, distance.abs()
    widest = torch.tensor((max_distance - 1) / middle, dtype=torch.float32, device=distance.device).log()
    log = (size.clamp(min=middle).float() / middle).log() / widest * (middle - 1)
    wide = (log.ceil() + middle).long() * distance.sign()
    return torch.where(size <= middle, distance, wide).clamp(-span, span - 1)
