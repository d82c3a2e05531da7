"""Statistics of whole batches, of which each of several processes has a part (Ioffe and Szegedy, 2015).

A process without rows, or without a label to learn from, makes fewer sums than the others. So each sum carries how many
processes are through with their part, and who is takes part with nothing until all are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from polyhead.nn.norm import BatchNorm
from polyhead.train.gradients import Start


class Statistics:
    """The sums that the batch norms of a model make over all processes, forward and backward."""

    def __init__(self, model: nn.Module, start: Start, world: int) -> None:
        self.model, self.start, self.world = model, start, world
        self.norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
        for norm in self.norms:
            norm.summed = self.summed

    def summed(self, x: Tensor) -> Tensor:
        """A row of numbers summed over all processes; gradients are as well."""
        out: Tensor = _Summed.apply(x, self)
        return out

    def sum(self, x: Tensor, through: bool) -> Tensor:
        """The sum, with the number of processes that are through behind it."""
        total = torch.cat([x, x.new_tensor([through])])
        self.start(total)()
        return total

    def settle(self) -> None:
        """Take part with nothing until all are through."""
        if self.norms:
            like = self.norms[0].weight
            nothing = torch.zeros(
                len(like) + 1, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device
            )
            while int(self.sum(nothing, True)[-1]) < self.world:
                pass


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, statistics: Statistics) -> Tensor:
        ctx.statistics = statistics
        return statistics.sum(x, False)[:-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.statistics.sum(grad, False)[:-1], None
