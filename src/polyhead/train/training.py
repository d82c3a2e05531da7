"""All that changes while a model learns, and which of the weights it had are the run's in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.nn.weights import weights
from polyhead.recipe import TrainConfig
from polyhead.registry import OPTIMIZER, SCHEDULE
from polyhead.train import checkpoint
from polyhead.train.ema import Ema, mean, put
from polyhead.train.learned import prepare, scale_rates
from polyhead.train.optim import set_rates
from polyhead.train.precision import LossScale, resolve
from polyhead.train.progress import Progress
from polyhead.train.schedule import Schedule
from polyhead.train.snapshot import flatten_optimizer, unflatten_optimizer
from polyhead.train.tensors import expect


class Training:
    """Model, optimisers, schedule, average and counters, saved and restored as one."""

    def __init__(self, model: nn.Module, config: TrainConfig, d_model: int, steps: int) -> None:
        self.model, self.progress = model, Progress()
        self.saved_best = 0  # the best step as the newest checkpoint knows it
        prepare(model, config)
        self.optimizers: list[Optimizer] = OPTIMIZER.build(config.optimizer, model, config.lr)
        scale_rates(model, self.optimizers, config.lr_factors)
        self.schedule: Schedule = SCHEDULE.build(config.schedule, d_model, steps)
        self.ema = Ema(model, config.ema) if config.ema else None
        self.device = next(model.parameters()).device
        self.precision = resolve(config.precision, self.device)
        self.scale = LossScale() if self.precision == "fp16" else None
        set_rates(self.optimizers, 1.0)

    def finite(self) -> bool:
        """Whether every weight is a number. Such as are not never become one again."""
        return all(bool(torch.isfinite(w).all()) for w in weights(self.model).values())

    def save(self, root: Path, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N. Tied weights are one parameter and written once."""
        tensors: dict[str, dict[str, Tensor]] = {"model": weights(self.model)}
        state: dict[str, Any] = {"progress": self.progress.to_json(), "optimizers": []}
        for i, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer_{i}"], described = flatten_optimizer(optimizer.state_dict())
            state["optimizers"].append(described)
        if self.ema:
            tensors["ema"] = self.ema.weights
        if self.scale:
            state["loss_scale"] = self.scale.to_json()
        checkpoint.save(root, self.progress.step, tensors, state, extra=extra)
        self.saved_best = self.progress.best_step

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit."""
        wanted = weights(self.model)
        expect(saved.tensors["model"], wanted, saved.path)
        put(self.model, saved.tensors["model"])
        described = saved.state["optimizers"]
        for i, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(unflatten_optimizer(saved.tensors[f"optimizer_{i}"], described[i]))
        if self.ema:
            expect(saved.tensors["ema"], wanted, saved.path)
            self.ema.load(saved.tensors["ema"])
        if self.scale and "loss_scale" in saved.state:  # before, it may have been another format
            self.scale.load(saved.state["loss_scale"])
        self.progress = Progress.from_json(saved.state["progress"])
        self.saved_best = self.progress.best_step


def regular(steps: list[int], config: TrainConfig) -> list[int]:
    """The checkpoints that ``average`` takes: the last ones of the rhythm of ``save_every``.

    Those in between, of a best evaluation or of an interruption, would give some stretches a double weight; one of
    step 0 has learned nothing yet.
    """
    of_rhythm = [step for step in steps if step and step % config.save_every == 0]
    return of_rhythm[-config.average :] if config.average else []


def prune(training: Training, config: TrainConfig, checkpoints: Path) -> None:
    """Delete all checkpoints but the ``keep`` newest, those to be averaged, and the best.

    A step that has just become the best may not be on the disk yet, and never be: the one before it stays till then.
    """
    there = checkpoint.steps(checkpoints)
    oldest = min(regular(there, config), default=0)
    wanted = sum(step >= oldest for step in there) if config.average else 0
    checkpoint.prune(
        checkpoints, max(config.keep, wanted), {training.progress.best_step, training.saved_best}
    )


def final_weights(training: Training, config: TrainConfig, checkpoints: Path) -> str:
    """Put the weights that a finished run is known by into the model; returns where they come from.

    With ``average``, the mean of the last regular checkpoints; else with ``ema``, the moving average as it was
    at the best evaluation; else the weights at the best evaluation; without a finite one, the last weights.
    """
    model, progress = training.model, training.progress
    if config.average:
        there = [step for step in checkpoint.steps(checkpoints) if step <= progress.step]
        last = regular(there, config) or [progress.step]
        put(model, mean([checkpoint.load(checkpoints / f"step-{step}").tensors["model"] for step in last]))
        return f"mean of the checkpoints {', '.join(map(str, last))}"
    group = "ema" if training.ema else "model"
    step = progress.best_step or progress.step
    put(model, checkpoint.load(checkpoints / f"step-{step}").tensors[group])
    return f"EMA at step {step}" if training.ema else f"checkpoint {step}"
