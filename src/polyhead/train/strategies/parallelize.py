"""The choice of a strategy, whether it fits, and the order in which the model of a training is wrapped."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.evaluate.metrics import KNOWN_METRICS
from polyhead.train.distributed.context_parallel import find_context_obstacle
from polyhead.train.distributed.mesh import MeshShape
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


_REPLICATED_REASON = (
    "checkpoint=sharded saves the part of the model that each process has, and all have the whole: set "
    "whole, or split the model with shard, tensor or pipeline"
)


def check_parallel(recipe: Recipe, config: ModelConfig, shape: MeshShape) -> None:
    """Raise a UserError with the reason if a training cannot be partitioned over a mesh of this shape."""
    if reason := find_obstacle(recipe, config, shape):
        raise UserError(f"train.parallel ({str(shape) or 'one process'}): {reason}")


def find_obstacle(recipe: Recipe, config: ModelConfig, shape: MeshShape) -> str | None:
    """Why a training cannot be partitioned over a mesh of this shape; None if it can."""
    if shape.context > 1:
        reason = find_context_obstacle(config, TASK.get(recipe.task.name))
        if recipe.distill:
            reason = "a teacher of distill reads whole rows"
        if reason:
            return f"the tokens of a row cannot be split, since {reason}; set context=1"
    train = recipe.train
    if not shape.partitions_model:
        return _REPLICATED_REASON if train.parallel.checkpoint == "sharded" else None
    if train.lora and train.lora.base != "fp32":
        return f"the packed weights of train.lora.base={train.lora.base} are not split; set fp32"
    if train.eval_bleu or KNOWN_METRICS[train.best_metric].make_scorer:
        key = "eval_bleu" if train.eval_bleu else f"best_metric={train.best_metric}"
        return (
            f"train.{key} translates, which takes the whole model on each process; measure the loss instead"
        )
    if shape.pipeline > 1 and (reason := _find_pipeline_obstacle(recipe, config, shape)):
        return reason
    if train.precision == "fp16":
        return "the loss scale of train.precision=fp16 is not known to all processes; set bf16 or fp32"
    if shape.tensor > 1:
        from polyhead.train.distributed.tensor_parallel import find_tensor_obstacle  # DTensors load slowly

        return find_tensor_obstacle(config, shape.tensor)
    return None


def _find_pipeline_obstacle(recipe: Recipe, config: ModelConfig, shape: MeshShape) -> str | None:
    from polyhead.train.distributed.pipeline import find_pipeline_obstacle  # slow to import

    parallel, train = recipe.train.parallel, recipe.train
    if shape.context * shape.tensor > 1:
        return "a pipeline can be combined with replicate and shard, not with context or tensor"
    if shape.shard > 1 and parallel.schedule not in ("gpipe", "1f1b"):
        return f"shard cannot be combined with schedule={parallel.schedule}; set gpipe or 1f1b"
    if parallel.schedule in ("zero_bubble", "zbv") and train.compile == "layers":
        return (
            f"schedule={parallel.schedule} splits the backward pass, which a compiled layer does not; set "
            "train.compile=none"
        )
    return find_pipeline_obstacle(config, recipe.task.name, shape.pipeline, parallel.schedule)
