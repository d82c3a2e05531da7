"""Data parallelism: each rank has the whole model, and its part of the rows or tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polyhead.train.strategies.base import Strategy, accumulate_gradients


class Replicated(Strategy):
    """Ranks with the same weights, whose gradients are summed in buckets during the last backward pass."""

    @cached_property
    def replica(self) -> nn.Module:
        """The loss module as ranks call it: torch's DistributedDataParallel."""
        return self.ranks.replicate(self.loss_module)

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        return accumulate_gradients(self, self.replica, batches, counts, self.sync_context)

    def sync_context(self, is_last: bool) -> AbstractContextManager[None]:
        """Context for the passes of a batch: gradients are summed in the last one."""
        if isinstance(self.replica, DistributedDataParallel) and not is_last:
            return self.replica.no_sync()
        return nullcontext()
