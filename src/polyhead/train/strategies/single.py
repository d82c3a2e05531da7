"""A training in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.strategies.base import Strategy, accumulate_gradients
from polyhead.train.train_state import TrainState
from polyhead.train.update import PendingMetrics, StepMetrics, can_defer_metrics, queue_update


class Single(Strategy):
    """One process with the whole model. On a GPU metrics are read during the next step, if they can be."""

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        super().__init__(training, task, config, ranks)
        self.delay = int(can_defer_metrics(training))

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        return accumulate_gradients(self, self.loss_module, batches, counts)

    def step(self, losses: Sequence[Tensor], count: int) -> StepMetrics | PendingMetrics:
        if self.delay and count:
            return queue_update(self.training, losses, count, self.clip)
        return super().step(losses, count)
