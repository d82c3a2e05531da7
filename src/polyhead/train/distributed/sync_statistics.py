"""Statistics over the whole batch, which is sharded over processes: batch norms and loads of experts.

All processes run the same parts in the same order, also one without rows, which has a dummy batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.norm import BatchNorm

AsyncAllReduce = Callable[[Tensor], Callable[[], None]]
"""Starts an in-place sum of a tensor over ranks; returns a function that waits for it."""


class SyncStatistics:
    """All-reduce of the statistics of a model over all processes, forward and backward."""

    def __init__(self, model: nn.Module, all_reduce: AsyncAllReduce) -> None:
        self.model, self.all_reduce = model, all_reduce
        self.norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
        self.mixtures = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Context in which the parts of the model use the statistics of all processes."""
        old_sums = [norm.all_reduce for norm in self.norms]
        old_counts = [mixture.all_reduce_count for mixture in self.mixtures]
        for norm in self.norms:
            norm.all_reduce = self.sum_vector
        for mixture in self.mixtures:
            mixture.all_reduce_count = self.sum_count
        try:
            yield
        finally:
            for norm, old_sum in zip(self.norms, old_sums, strict=True):
                norm.all_reduce = old_sum
            for mixture, old_count in zip(self.mixtures, old_counts, strict=True):
                mixture.all_reduce_count = old_count

    def sum_vector(self, x: Tensor) -> Tensor:
        """Sum a vector over all processes; its gradient is summed as well. (C,) -> (C,)."""
        out: Tensor = _AllReduceSum.apply(x, self.all_reduce)
        return out

    def sum_count(self, count: int | Tensor) -> int:
        """Sum a number over all processes."""
        total = torch.tensor([int(count)])
        self.all_reduce(total)()
        return int(total)


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, all_reduce: AsyncAllReduce) -> Tensor:
        ctx.all_reduce = all_reduce
        return _sum_over_ranks(x, all_reduce)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum_over_ranks(grad, ctx.all_reduce), None


def _sum_over_ranks(x: Tensor, all_reduce: AsyncAllReduce) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce(total)()
    return total
