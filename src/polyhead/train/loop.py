"""The training loop: one function that can be read from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.errors import UserError
from polyhead.nn.loss import Loss
from polyhead.recipe import TrainConfig
from polyhead.registry import OPTIMIZER, SCHEDULE
from polyhead.train import checkpoint
from polyhead.train.ema import Ema, mean, put
from polyhead.train.optim import set_rates
from polyhead.train.precision import autocast, resolve
from polyhead.train.progress import Progress
from polyhead.train.schedule import Schedule
from polyhead.train.snapshot import flatten_optimizer, unflatten_optimizer

MOST_SKIPPED = 10  # updates in a row that may fail to be finite


class Task(Protocol):
    """What is learned. Losses are sums, so that accumulation averages exactly."""

    def plan(self, epoch: int) -> Sequence[Any]: ...
    def batch(self, rows: Any) -> Any: ...
    def count(self, batch: Any) -> int: ...
    def loss(self, model: nn.Module, batch: Any) -> Loss: ...
    def evaluate(self, model: nn.Module) -> dict[str, float]: ...


class Reporter(Protocol):
    """Who is told how it goes."""

    def train(self, row: dict[str, float]) -> None: ...
    def valid(self, row: dict[str, float]) -> None: ...
    def say(self, line: str) -> None: ...


@dataclass
class Outcome:
    """How a training ended: "done", "stopped early" or "interrupted"."""

    how: str
    step: int
    progress: Progress


class Training:
    """All that changes while a model learns, saved and restored as one."""

    def __init__(self, model: nn.Module, config: TrainConfig, d_model: int, steps: int) -> None:
        self.model, self.progress = model, Progress()
        self.optimizers: list[Optimizer] = OPTIMIZER.build(config.optimizer, model, config.lr)
        self.schedule: Schedule = SCHEDULE.build(config.schedule, d_model, steps)
        self.ema = Ema(model, config.ema) if config.ema else None
        set_rates(self.optimizers, 1.0)

    def save(self, root: Path, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N."""
        tensors: dict[str, dict[str, Tensor]] = {"model": dict(self.model.named_parameters())}
        state: dict[str, Any] = {"progress": self.progress.to_json(), "optimizers": []}
        for i, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer_{i}"], described = flatten_optimizer(optimizer.state_dict())
            state["optimizers"].append(described)
        if self.ema:
            tensors["ema"] = self.ema.weights
        checkpoint.save(root, self.progress.step, tensors, state, extra=extra)

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit."""
        put(self.model, saved.tensors["model"])
        for i, (optimizer, described) in enumerate(zip(self.optimizers, saved.state["optimizers"], strict=True)):
            optimizer.load_state_dict(unflatten_optimizer(saved.tensors[f"optimizer_{i}"], described))
        if self.ema:
            self.ema.weights = dict(saved.tensors["ema"])
        self.progress = Progress(**saved.state["progress"])


def total_steps(task: Task, config: TrainConfig) -> int:
    """Updates from the limits of the recipe, whichever comes first."""
    limits = [config.steps] if config.steps else []
    if config.epochs:
        limits.append(max(1, math.ceil(config.epochs * len(task.plan(0)) / config.accumulate)))
    return min(limits)


def train(
    training: Training,
    task: Task,
    config: TrainConfig,
    checkpoints: Path,
    report: Reporter,
    stop: Callable[[], bool] = lambda: False,
    extra: dict[str, str] | None = None,
) -> Outcome:
    """Train until the steps are done, progress ends, or ``stop`` asks for it.

    Every step draws its dropout from (seed, step), and the order of the data is a function of (seed, epoch), so
    a run that is killed and resumed ends with the same bits as one that never stopped.
    """
    model, progress = training.model, training.progress
    steps = total_steps(task, config)
    device = next(model.parameters()).device
    precision = resolve(config.precision, device)
    stream = progress.batches(task.plan)
    meter = Meter()
    saved_at = progress.step
    outcome = Outcome("done", progress.step, progress)
    while progress.step < steps:
        model.train()
        progress.step += 1
        torch.manual_seed(seed_of(config.seed, progress.step))
        batches = [task.batch(next(stream)) for _ in range(config.accumulate)]
        loss = _update(training, task, batches, precision, config, device, meter)
        if not math.isfinite(loss):
            _skip(progress, checkpoints)
        if progress.step % config.log_every == 0 or progress.step == steps:
            rate = training.schedule(progress.step) * config.lr
            report.train({**meter.row(), "lr": rate, "step": progress.step, "steps": steps, "epoch": progress.epoch})
        evaluated = progress.step % config.eval_every == 0 or progress.step == steps
        if evaluated:
            _evaluate(training, task, config, report)
        if progress.step % config.save_every == 0 or progress.step == steps or (evaluated and progress.stale == 0):
            training.save(checkpoints, extra or {})
            checkpoint.prune(checkpoints, max(config.keep, config.average), progress.best_step or None)
            saved_at = progress.step
        if config.patience and progress.stale >= config.patience:
            outcome.how = "stopped early"
            break
        if stop():
            outcome.how = "interrupted"
            break
    if saved_at != progress.step:
        training.save(checkpoints, extra or {})
    outcome.step = progress.step
    return outcome


def seed_of(seed: int, step: int) -> int:
    """The seed of one step's dropout, mixed, because torch's CPU generator looks at the low 32 bits alone."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])


def final_weights(training: Training, config: TrainConfig, checkpoints: Path) -> str:
    """Put the weights that a finished run is known by into the model; returns where they come from.

    The mean of the last ``average`` checkpoints if asked for, else the EMA, else the best checkpoint.
    """
    if config.average:
        last = [checkpoint.load(checkpoints / f"step-{step}") for step in checkpoint.steps(checkpoints)[-config.average :]]
        put(training.model, mean([saved.tensors["model"] for saved in last]))
        return f"mean of the checkpoints {', '.join(str(saved.step) for saved in last)}"
    best = training.progress.best_step
    saved = checkpoint.load(checkpoints / f"step-{best}") if best else None
    if training.ema:
        put(training.model, saved.tensors["ema"] if saved else training.ema.weights)
        return f"EMA at step {best or training.progress.step}"
    if saved:
        put(training.model, saved.tensors["model"])
    return f"checkpoint {best or training.progress.step}"


class Meter:
    """Sums since the last report."""

    def __init__(self) -> None:
        self.total = self.nll = self.norm = 0.0
        self.count = self.steps = 0
        self.since = time.perf_counter()

    def row(self) -> dict[str, float]:
        """Means and speed since the last call."""
        now = time.perf_counter()
        count, steps = max(self.count, 1), max(self.steps, 1)
        row = {
            "loss": self.total / count,
            "ppl": math.exp(min(self.nll / count, 700.0)),
            "grad_norm": self.norm / steps,
            "tokens_per_s": self.count / (now - self.since),
            "ms_per_step": 1e3 * (now - self.since) / steps,
        }
        self.__init__()  # type: ignore[misc]
        return row


def _update(
    training: Training, task: Task, batches: Sequence[Any], precision: Any, config: TrainConfig, device: torch.device, meter: Meter
) -> float:
    """One step of the optimisers over some batches; returns the mean loss, which may not be finite."""
    model, progress = training.model, training.progress
    count = sum(task.count(batch) for batch in batches)
    total = nll = 0.0
    for batch in batches:
        with autocast(precision, device):
            loss = task.loss(model, batch)
        if loss.count:
            (loss.total / max(count, 1)).backward()
        total, nll = total + float(loss.total.detach()), nll + float(loss.nll)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf))
    mean_loss = total / max(count, 1)
    if count == 0 or not math.isfinite(norm + mean_loss):
        mean_loss = math.nan
    else:
        set_rates(training.optimizers, training.schedule(progress.step))
        for optimizer in training.optimizers:
            optimizer.step()
        if training.ema:
            training.ema.update(model, progress.step)
        progress.tokens += count
        progress.in_a_row = 0
        meter.total, meter.nll, meter.count, meter.norm = meter.total + total, meter.nll + nll, meter.count + count, meter.norm + norm
    meter.steps += 1
    model.zero_grad(set_to_none=True)
    return mean_loss


def _skip(progress: Progress, checkpoints: Path) -> None:
    """Count an update that was not finite; too many in a row end the run, with the way back named."""
    progress.skipped += 1
    progress.in_a_row += 1
    if progress.in_a_row >= MOST_SKIPPED:
        good = checkpoint.newest(checkpoints)
        where = f"the last good checkpoint is {good.path}" if good else "there is no checkpoint yet"
        raise UserError(
            f"the loss was not finite for {MOST_SKIPPED} updates in a row, at step {progress.step}; {where}; "
            "try a lower train.lr, a longer warm-up or train.precision=fp32"
        )


def _evaluate(training: Training, task: Task, config: TrainConfig, report: Reporter) -> None:
    model, progress = training.model, training.progress
    model.eval()
    with torch.inference_mode():
        if training.ema:
            with training.ema.applied(model):
                measured = task.evaluate(model)
        else:
            measured = task.evaluate(model)
    best = progress.improved(measured[config.metric], config.metric != "loss")
    report.valid({**measured, "step": progress.step, "epoch": progress.epoch, "best": float(best)})
