"""How parts are sharded over the ranks of tensor parallelism.

Every rank computes some heads or hidden features of a part, from a whole input, and the outputs of all ranks
are summed (Shoeybi et al., 2019, sec. 3). A part declares this by an attribute ``shard_plan``; one that
cannot be sharded with its settings returns the reason from ``find_shard_obstacle``, and one with tables for
each head keeps those of its rank in ``keep_shard``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class ShardPlan:
    """How the weights of a part are sharded, by the name of the weight or of the module that has it.

    Every weight of a part must be named, except those of inner parts with a ``shard_plan`` of their own.
    """

    colwise: tuple[str, ...] = ()
    """Linear maps of which each rank computes some output features."""
    rowwise: tuple[str, ...] = ()
    """Linear maps of which each rank has some input features: the outputs of the ranks are summed."""
    shard_dims: Mapping[str, int] = field(default_factory=dict)
    """Other weights, and the dimension that is sharded: heads or hidden features."""
    partial_grads: tuple[str, ...] = ()
    """Weights that act on the heads or features of each rank: replicated, their gradients are summed."""
    replicated_weights: tuple[str, ...] = ()
    """Weights that act on whole vectors: replicated, with the same gradient on all ranks."""
    parts: tuple[str, ...] = ()
    """Inner modules, or lists of them, which must have a ``shard_plan`` of their own."""


@runtime_checkable
class FindsShardObstacle(Protocol):
    """A part that some sizes cannot shard."""

    def find_shard_obstacle(self, size: int) -> str | None:
        """The reason why the part cannot be sharded over ``size`` ranks, if there is one."""


@runtime_checkable
class KeepsShard(Protocol):
    """A part with tables for each head."""

    def keep_shard(self, rank: int, size: int) -> None:
        """Keep the tables of the heads of one of ``size`` ranks."""


class VocabularyShard(NamedTuple):
    """The tokens whose rows of an LM head are on this rank, and sums over the ranks that have the others."""

    tokens: slice
    vocab_size: int
    all_reduce: Callable[[Tensor, str], Tensor]  # "sum" or "max", without a gradient
    sum_gradient: Callable[[Tensor], Tensor]  # the identity, whose gradient is summed

    def log_softmax(self, scores: Tensor) -> Tensor:
        """log p of this rank's tokens: logits (n, own) -> (n, own)."""
        maximum = self.all_reduce(scores.amax(-1, keepdim=True), "max")
        sums = self.all_reduce((scores - maximum).exp_().sum(-1, keepdim=True), "sum")
        return scores - (maximum + sums.log_())

    def find_labels(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each label among this rank's tokens, and whether it is one of them; 0 if not."""
        is_own = (labels >= self.tokens.start) & (labels < self.tokens.stop)
        return torch.where(is_own, labels - self.tokens.start, 0), is_own


def get_shard_plan(part: Any) -> ShardPlan | None:
    """The declaration of a part; None if it has none."""
    found = getattr(part, "shard_plan", None)
    return found if isinstance(found, ShardPlan) else None


def select_shard(n: int, rank: int, size: int) -> slice:
    """The indices of a rank's contiguous shard of n; the last shards are smaller if n is no multiple."""
    chunk = -(-n // size)
    return slice(min(rank * chunk, n), min((rank + 1) * chunk, n))
