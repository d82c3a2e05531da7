"""Data parallelism: each rank has the whole model, and its part of the rows or tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from polyhead.train.strategies.base import Strategy


class Replicated(Strategy):
    """Ranks with the same weights, whose gradients are summed in buckets during the last backward pass."""

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        if self.root is self.loss_module:
            self.root = self.ranks.replicate(self.loss_module)  # torch's DistributedDataParallel
        return super().forward_backward(batches, counts)

    def sync_context(self, is_last: bool) -> AbstractContextManager[None]:
        """Context for the passes of a batch: gradients are summed in the last one."""
        if isinstance(self.root, DistributedDataParallel) and not is_last:
            return self.root.no_sync()
        return nullcontext()
