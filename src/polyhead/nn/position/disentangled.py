"""Learned vectors of relative positions, read through the projections of attention itself."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.dropout import Dropout
from polyhead.nn.kv import KV
from polyhead.nn.norm import LayerNorm
from polyhead.nn.position.base import Position, Project
from polyhead.nn.position.distance import Extent, distances, look_up
from polyhead.nn.position.once import Once
from polyhead.ranges import AtLeast0
from polyhead.registry import POSITION


@POSITION.register("disentangled")
class Disentangled(Position):
    """A learned vector for each distance, of which every layer makes a query and a key as it does of a token.

    So a query looks for distances (content to position), and a key says at which distance it wants to be seen (position to
    content). All layers share the vectors, and each has its projections. Scores are sums of three products, and attention
    divides them by √(3D) if its ``scale`` is not given. Half of the span is for one distance each, the rest widens with
    the distance up to ``max_distance``. Vectors that no pair of a batch can read are not projected, but on a GPU those of a
    padded batch are; in a decoder they are projected anew at every step.

    Equation: (q_i·k_j + q_i·k'_{δ(i,j)} + k_j·q'_{δ(i,j)}) / √(3D),  q' = W_q N(P), k' = W_k N(P),  P learned, (2 span, C)
    Paper: He et al., 2021a, eq. 4; buckets, norm and shared projections: He et al., 2021b (DeBERTa-v2, v3)
    When: classes of texts and of pairs, as DeBERTa tells them; dearer than the other schemes
    Recipe: model: {position: {name: disentangled, span: 64, max_distance: 256}}
    Options:
      span: vectors to either side; farther distances are those of the last
      max_distance: tokens from which on all distances are one; without, each within the span has a vector of its own
      terms: the products beside that of the contents: both, content to position (c2p) or position to content (p2c)
      norm_eps: of the layer norm on the vectors, added to the variance; without, there is no norm
      dropout: probability, on the vectors
    """

    def __init__(
        self,
        shape: Shape,
        *,
        span: int = 256,
        max_distance: int | None = 512,
        terms: Literal["both", "c2p", "p2c"] = "both",
        norm_eps: AtLeast0 | None = 1e-7,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if span < 2:
            raise UserError(f"span of disentangled is {span}; it counts vectors to either side, at least 2")
        if max_distance is not None and max_distance < span // 2 + 2:
            raise UserError(
                f"max_distance of disentangled is {max_distance}; a span of {span} tells all distances up to {span // 2} "
                f"apart, so give at least {span // 2 + 2}"
            )
        self.span, self.max_distance, self.terms = span, max_distance, terms
        self.products = 3 if terms == "both" else 2
        self.weight = nn.Parameter(torch.empty(2 * span, shape.d_model))
        nn.init.normal_(self.weight, std=shape.d_model**-0.5)
        self.norm = None if norm_eps is None else LayerNorm(shape.d_model, eps=norm_eps)
        self.dropout, self._once = Dropout(dropout), Once()

    def scores(
        self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None, project: Project
    ) -> Tensor | None:
        """(B, H, T, D) over kv -> (B, H, T, S)."""
        index, first, behind = self._once(self._index, pos, kv.pos, Extent.of(q, kv))
        vectors = self.dropout(self.weight if self.norm is None else self.norm(self.weight))[first:behind]
        scale, groups = q.size(-1) ** -0.5 if scale is None else scale, kv.k.size(1)
        queries, keys = (x * scale for x in project(vectors))  # (H, R, D), (K, R, D)
        found = []
        if self.terms != "p2c":
            products = q.unflatten(1, (groups, -1)) @ keys[:, None].mT
            found.append(look_up(products.flatten(1, 2), index))
        if self.terms != "c2p":
            products = kv.k[:, :, None] @ queries.unflatten(0, (groups, -1)).mT
            found.append(look_up(products.flatten(1, 2), index.mT).mT)
        return found[0] if len(found) == 1 else found[0] + found[1]

    def _index(self, q_pos: Tensor | None, k_pos: Tensor | None, extent: Extent) -> tuple[Tensor, int, int]:
        """The vector of each pair (1|B, 1|H, T, S), counted from the first of those that some pair may have to the last."""
        far = reach(q_pos, k_pos, extent)
        there = range(2 * self.span) if far is None else near(far, self.span, self.max_distance)
        index = bucket(-distances(q_pos, k_pos, extent), self.span, self.max_distance) + self.span
        return index.clamp(there.start, there.stop - 1) - there.start, there.start, there.stop


def reach(q_pos: Tensor | None, k_pos: Tensor | None, extent: Extent) -> int | None:
    """The largest distance that there can be; None where it is not known without waiting for another device."""
    if torch.compiler.is_compiling():  # the graph shall serve any numbers
        return None
    given = [pos for pos in (q_pos, k_pos) if pos is not None and pos.numel()]
    if any(pos.device.type != "cpu" for pos in given):
        return None
    return max(extent.queries - 1, extent.slots - 1, *(int(pos.max()) for pos in given))


def near(far: int, span: int, max_distance: int | None) -> range:
    """Rows of the table that distances up to ``far`` may have."""
    middle = span // 2
    if max_distance is not None and far > middle:
        log = math.log(far / middle) / math.log((max_distance - 1) / middle)
        far = middle + math.ceil(log * (middle - 1)) + 1  # where fp32 rounds, there may be one more
    return range(max(0, span - far), min(2 * span, span + far + 1))


def bucket(distance: Tensor, span: int, max_distance: int | None) -> Tensor:
    """The bucket of each distance q - k, from -span to span - 1, in the fp32 arithmetic of the original code."""
    if max_distance is None:
        return distance.clamp(-span, span - 1)
    middle, size = span // 2, distance.abs()
    widest = torch.tensor((max_distance - 1) / middle, dtype=torch.float32, device=distance.device).log()
    log = (size.clamp(min=middle).float() / middle).log() / widest * (middle - 1)
    wide = (log.ceil() + middle).long() * distance.sign()
    return torch.where(size <= middle, distance, wide).clamp(-span, span - 1)
