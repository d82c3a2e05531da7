"""All that changes while a model learns, and which of the weights it had are the run's in the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
from polyhead.train.ranks import ALONE, Ranks
from polyhead.train.schedule import Schedule
from polyhead.train.signals import end_on_signal
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


class Candidate(NamedTuple):
    """Weights that a finished run may be known by: of one checkpoint, or the mean of several."""

    name: str
    steps: list[int]
    group: str = "model"

    def load(self, checkpoints: Path) -> Mapping[str, Tensor]:
        """Read them from the checkpoints."""
        several = [checkpoint.load(checkpoints / f"step-{step}").tensors[self.group] for step in self.steps]
        return several[0] if len(several) == 1 else mean(several)


def candidates(training: Training, config: TrainConfig, checkpoints: Path) -> list[Candidate]:
    """The weights to choose from: single ones first, then with ``ema`` and ``average`` these averages.

    Single weights are those at the best evaluation, or the last ones where none was finite. With ``ema`` evaluations
    are of the moving average, so the last single weights may be better than those, and are measured as well.
    """
    progress = training.progress
    best = progress.best_step or progress.step
    steps = [best, progress.step] if training.ema and best != progress.step else [best]
    found = [Candidate(f"checkpoint {step}", [step]) for step in steps]
    if training.ema:
        found.append(Candidate(f"EMA at step {best}", [best], "ema"))
    if config.average:
        there = [step for step in checkpoint.steps(checkpoints) if step <= progress.step]
        last = regular(there, config)
        if len(last) > 1:
            found.append(Candidate(f"mean of the checkpoints {', '.join(map(str, last))}", last))
    return found


def final_weights(
    training: Training,
    config: TrainConfig,
    checkpoints: Path,
    measure: Callable[[], float],
    ranks: Ranks = ALONE,
) -> str:
    """Put the weights that a finished run is known by into the model of every rank; returns which, and what was measured.

    ``measure`` gives ``train.metric`` of the weights that are in the model, on the validation text. An average is taken
    only if it is better than the single weights.
    """
    with end_on_signal():
        found = ranks.tell(lambda: [one._asdict() for one in candidates(training, config, checkpoints)])
    several = [Candidate(**one) for one in found]

    def place(one: Candidate) -> None:
        with end_on_signal():
            ranks.tell(lambda: put(training.model, one.load(checkpoints)))
        ranks.copy(weights(training.model).values())  # which nobody may miss

    if len(several) == 1:
        place(several[0])
        return several[0].name
    values = []
    for one in several:
        place(one)
        with end_on_signal():
            values.append(measure())
    chosen = max(range(len(several)), key=lambda i: (_goodness(values[i], config.metric), -i))
    place(several[chosen])
    compared = "; ".join(
        f"{one.name}: {value:.4f}"
        for one, value in zip(several, values, strict=True)
        if one is not several[chosen]
    )
    return f"{several[chosen].name} ({config.metric} {values[chosen]:.4f}; {compared})"


def _goodness(value: float, metric: str) -> float:
    """More is better, whatever the metric."""
    if not math.isfinite(value):
        return -math.inf
    return -value if metric == "loss" else value
