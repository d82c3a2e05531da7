"""Shards: each rank has a part of every weight, of sharded data parallelism, tensor parallelism or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.shard_model import get_sharding_mesh, shard_weights
from polyhead.train.gradient_norm import clip_sharded_gradients
from polyhead.train.optim import list_parameters
from polyhead.train.strategies.partial_model import PartialModel
from polyhead.train.train_state import TrainState


class Sharded(PartialModel):
    """Ranks of which each has a part of the weights, with the optimizer state of that part."""

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        super().__init__(training, task, config, ranks)
        self.is_fully_sharded = ranks.place.shape.shard > 1
        if self.is_fully_sharded:
            assert ranks.mesh is not None
            mesh = get_sharding_mesh(ranks.mesh, ranks.place.shape)
            shard_weights(self.loss_module, mesh, config.parallel.reduce_dtype)

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        losses = super().forward_backward(batches, counts)
        if not self.is_fully_sharded:
            self.ranks.sum_gradients(self.training.model)
        return losses

    def sync_context(self, is_last: bool) -> AbstractContextManager[None]:
        """Context for the passes of a batch: gradients are summed over ranks in the last one."""
        if self.is_fully_sharded:
            self.loss_module.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return nullcontext()

    def clip(self) -> float:
        return clip_sharded_gradients(list_parameters(*self.training.optimizers), self.max_norm, self.ranks)

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        root = self.loss_module
        results = self.ranks.map_in_lockstep(lambda item: root.run(lambda: work(item)), items)
        if self.is_fully_sharded:
            root.reshard()  # type: ignore[operator]  # its weights stay gathered for a backward pass
        return results
