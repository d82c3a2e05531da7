"""The choice of a strategy, and the order in which the model of a training is wrapped."""

from __future__ import annotations

from typing import Any

from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.strategies.base import Replicated, Single, Strategy
from polyhead.train.strategies.sharded import Sharded
from polyhead.train.train_state import TrainState, build_optimizers


def parallelize(
    training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup = SINGLE_PROCESS
) -> Strategy:
    """Keep of the model what the mesh gives this rank, with its optimizers and EMA; all ranks call it.

    The order is that of the wrappers from outside to inside of a step: a whole model is partitioned into
    stages of a pipeline, the matrices of what is left are sharded over tensor ranks, and the parts are
    sharded last, so that a shard is one of the part. Optimizers are built for the parameters that result. The
    ranks have the same weights, of which none was trained yet.
    """
    shape, mesh = ranks.place.shape, ranks.mesh
    if not shape.partitions_model:
        return (Replicated if ranks.world_size > 1 else Single)(training, task, config, ranks)
    assert mesh is not None
    strategy: Strategy | None = None
    if shape.pipeline > 1:
        from polyhead.train.strategies.pipelined import Pipelined  # torch's pipelines import for a second

        strategy = Pipelined(training, task, config, ranks)
    training.optimizers, training.ema = [], None  # their memory is needed
    if shape.tensor > 1:
        from polyhead.train.distributed.tensor_parallel import shard_tensors  # DTensors load slowly

        shard_tensors(training.model, mesh["tensor"])
    strategy = strategy or Sharded(training, task, config, ranks)
    training.optimizers, training.ema = build_optimizers(training.model, config, shape.pipeline > 1)
    return strategy
