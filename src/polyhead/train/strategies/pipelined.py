"""Pipeline parallelism: each rank has some of the layers, alone or with other dimensions of the mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.pipeline import PipelineModel, count_micro_batches, cut_micro_batches
from polyhead.train.distributed.pipeline_stages import replace_parts
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.shard_model import get_sharding_mesh, shard_weights
from polyhead.train.distributed.stage_state import ModelLayout, StageState
from polyhead.train.optim import list_parameters
from polyhead.train.precision import autocast
from polyhead.train.strategies.sharded import PartialModel, clip_sharded_gradients
from polyhead.train.train_state import TrainState


class Pipelined(PartialModel):
    """The stages of this rank, taken from a whole model, and sharded if the mesh has shards."""

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        super().__init__(training, task, config, ranks)
        assert ranks.mesh is not None
        shape, parallel, model = ranks.place.shape, config.parallel, training.model
        layout = ModelLayout(model, training.optimizers)
        n = count_micro_batches(parallel.micro_batches, config.accumulate, shape.pipeline, parallel.schedule)
        self.n_parts = n // config.accumulate
        autocast_stage = partial(autocast, training.precision, training.device)
        self.model = PipelineModel(model, task, ranks.mesh["pipeline"], parallel.schedule, n, autocast_stage)
        self.is_fully_sharded = shape.shard > 1
        if self.is_fully_sharded:
            for module in self.model.modules:
                with replace_parts(module.stage.replacements):
                    shard_weights(module, get_sharding_mesh(ranks.mesh, shape), parallel.reduce_dtype)
        training.layout = StageState(layout, self.model)

    def collate(self, rows: Any) -> list[Any]:
        """The micro-batches of a batch that this rank's pipeline works on."""
        shard = self.ranks.shard(self.task, rows)
        if shard:
            return cut_micro_batches(self.task, shard[0], self.n_parts)
        return [self.task.dummy_batch() for _ in range(self.n_parts)]

    def run_largest_batch(self) -> None:
        """As many micro-batches of the largest batch as a step has."""
        parts = self.collate(self.task.largest_batch())
        n = self.model.n_micro_batches
        self.model.forward_backward([parts[i % len(parts)] for i in range(n)], 1.0)

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        losses = self.model.forward_backward(batches, 1 / max(int(sum(counts)), 1))
        if not self.is_fully_sharded:
            self.ranks.sum_gradients(self.model.model)
        return losses

    def clip(self) -> float:
        return clip_sharded_gradients(
            list_parameters(*self.training.optimizers),
            self.max_norm,
            self.ranks,
            self.model.uncounted_weights,
        )

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``ranks.map_in_lockstep``, in which each pipeline works on several of its items at once."""
        place, last = self.ranks.place, len(items) - 1
        n_rounds = math.ceil(len(items) / place.reduce_size)
        numbers = range(place.reduce_rank, n_rounds * place.reduce_size, place.reduce_size)
        results = iter(self.model.map(work, [items[min(number, last)] for number in numbers]))
        if self.is_fully_sharded:
            for module in self.model.modules:
                module.reshard()  # type: ignore[operator]  # weights stay gathered for a backward pass
        return self.ranks.map_in_lockstep(lambda _: next(results), items)
