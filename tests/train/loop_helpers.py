"""Shared by the tests of loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.train.conftest import Notes, Toy, toy_training

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.train.loop import Outcome, train_model
from polyhead.train.train_state import TrainState


def config(**changes: Any) -> TrainConfig:
    usual = {"steps": 12, "lr": 0.01, "precision": "fp32", "schedule": {"name": "noam", "warmup": 4},
        "log_every": 1,
             "eval_every": 100, "save_every": 100}  # fmt: skip
    return TrainConfig.model_validate(usual | changes)


def run(
    root: Path,
    task: Toy,
    settings: TrainConfig,
    stop_at: int | None = None,
    resume: bool = False,
    steps: int | None = None,
) -> tuple[TrainState, Outcome, Notes]:
    """A training of the toy, from the start or from the newest checkpoint, stopped after a step if asked."""
    training, notes = toy_training(settings, steps), Notes()
    saved = checkpoint.read_newest_checkpoint(root) if resume else None
    if saved:
        training.restore(saved)
    outcome = train_model(training, task, settings, root, notes, lambda: training.progress.step == stop_at)
    return training, outcome, notes


def unmeasured() -> float:
    raise AssertionError("there is nothing to choose from")
