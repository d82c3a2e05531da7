"""Batch norm statistics over the whole batch, which is sharded over processes (Ioffe and Szegedy, 2015).

A process without rows, or without labels, calls fewer all-reduces than the others. So each all-reduce also
counts the processes that have finished their shard, and a finished process joins with zeros until all have
finished.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polyhead.nn.norm import BatchNorm
from polyhead.train.distributed.bucketed_all_reduce import AsyncAllReduce


class SyncBatchNormSums:
    """All-reduce of the batch norm sums of a model over all processes, forward and backward."""

    def __init__(self, model: nn.Module, all_reduce: AsyncAllReduce, world_size: int) -> None:
        self.model, self.all_reduce, self.world_size = model, all_reduce, world_size
        self.norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
        for norm in self.norms:
            norm.all_reduce = self.sum_over_ranks

    def sum_over_ranks(self, x: Tensor) -> Tensor:
        """Sum a vector over all processes; its gradient is summed as well. (C,) -> (C,)."""
        out: Tensor = _AllReduceSum.apply(x, self)
        return out

    def reduce_with_flag(self, x: Tensor, is_done: bool) -> Tensor:
        """All-reduce ``x``; the number of finished processes is appended. (C,) -> (C + 1,)."""
        total = torch.cat([x, x.new_tensor([is_done])])
        self.all_reduce(total)()
        return total

    def finish(self) -> None:
        """Join all-reduces with zeros until all processes have finished."""
        if self.norms:
            weight = self.norms[0].weight
            zeros = torch.zeros(
                len(weight) + 1, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device
            )
            while int(self.reduce_with_flag(zeros, True)[-1]) < self.world_size:
                pass


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, statistics: SyncBatchNormSums) -> Tensor:
        ctx.statistics = statistics
        return statistics.reduce_with_flag(x, False)[:-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.statistics.reduce_with_flag(grad, False)[:-1], None
