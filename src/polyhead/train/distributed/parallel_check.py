"""Checks of whether a training can be split over processes as its recipe sets."""

from __future__ import annotations

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train.distributed.mesh import MeshShape

_REPLICATED_REASON = (
    "checkpoint=sharded saves the part of the model that each process has, and all have the whole: set "
    "whole, or split the model with shard, tensor or pipeline"
)


def check_parallel(recipe: Recipe, config: ModelConfig, shape: MeshShape) -> None:
    """Raise a UserError with the reason if a training cannot be split over a mesh of this shape."""
    if reason := find_obstacle(recipe, config, shape):
        raise UserError(f"train.parallel ({str(shape) or 'one process'}): {reason}")


def find_obstacle(recipe: Recipe, config: ModelConfig, shape: MeshShape) -> str | None:
    """Why a training cannot be split over a mesh of this shape; None if it can."""
    train = recipe.train
    if not shape.splits_model:
        return _REPLICATED_REASON if train.parallel.checkpoint == "sharded" else None
    if train.eval_bleu or train.best_metric in ("bleu", "chrf"):
        key = "eval_bleu" if train.eval_bleu else f"best_metric={train.best_metric}"
        return (
            f"train.{key} translates, which takes the whole model on each process; measure the loss instead"
        )
    if train.precision == "fp16":
        return "the loss scale of train.precision=fp16 is not known to all processes; set bf16 or fp32"
    return None
