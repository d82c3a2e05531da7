"""Number of steps that a budget gives a design, and the schedule of a trial, both fixed before training."""

from __future__ import annotations

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

from torch import nn

from polyhead.compare.budget import Budget
from polyhead.compare.tasks.base import get_compared_task
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.cost.flops import update_flops_factor
from polyhead.nn.device import resolve_device
from polyhead.train.distill import without_teacher
from polyhead.train.loggers import MetricsRow
from polyhead.train.loop import check_memory, total_steps, train_step
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.base import Task
from polyhead.train.train_state import TrainState
from polyhead.viz.eta_model import StepTime, interpolate_seconds


def read_clock(path: Path) -> list[StepTime]:
    """Read the step times of a file; an incomplete last line is skipped."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [StepTime(*json.loads(line)) for line in lines]


class TrainingClock:
    """Reporter that writes the training time at every logged step.

    Evaluations come right after a logged step and are not counted.
    """

    def __init__(self, path: Path, from_step: int) -> None:
        ticks = read_clock(path)
        self.seconds = interpolate_seconds(ticks, from_step)
        ticks_before = [tick for tick in ticks if tick.step < from_step]
        ticks_before += [StepTime(from_step, self.seconds)] if from_step else []
        replace_file(path, "".join(json.dumps(tick) + "\n" for tick in ticks_before).encode())
        self.file = path.open("a", encoding="utf-8")
        self.last_time, self.has_started = time.perf_counter(), False

    def info(self, line: str) -> None:
        if not self.has_started:  # the last message before the first step comes right before it
            self.last_time = time.perf_counter()

    def log_train(self, row: MetricsRow) -> None:
        now = time.perf_counter()
        self.seconds, self.last_time, self.has_started = self.seconds + now - self.last_time, now, True
        self.file.write(json.dumps([int(row["step"]), round(self.seconds, 4)]) + "\n")
        self.file.flush()

    def log_valid(self, row: MetricsRow) -> None:
        self.last_time = time.perf_counter()

    def close(self) -> None:
        self.file.close()


N_EVALUATIONS = 15  # approximate number of evaluations of a trial
_WARMUP_STEPS = 5  # untimed steps at the start, in which kernels are compiled and memory is allocated
# share of the budget that the timing probe takes, and its minimum and maximum seconds
PROBE_SHARE, MIN_PROBE_SECONDS, MAX_PROBE_SECONDS = 0.05, 2.0, 20.0


def compute_steps(
    budget: Budget, recipe: Recipe, model: nn.Module, task: Task, flops_per_token: float
) -> dict[str, Any]:
    """Number of steps, and the values it is computed from. The timing probe changes the model's weights."""
    tokens = (
        get_compared_task(recipe.task.name).tokens_per_step(without_teacher(task)) * recipe.train.accumulate
    )
    facts: dict[str, Any] = {"tokens_per_step": tokens}
    if budget.kind == "recipe":
        steps = float(total_steps(task, recipe.train))
    elif budget.kind == "steps":
        steps = budget.amount
    elif budget.kind == "tokens":
        steps = budget.amount / tokens
    elif budget.kind == "flops":
        steps = budget.amount / (
            update_flops_factor(recipe.train.lora is not None) * flops_per_token * tokens
        )
    else:
        facts["seconds_per_step"] = measure_step_time(recipe, model, task, budget.amount)
        steps = budget.amount / facts["seconds_per_step"]
    if round(steps) < 1:
        raise UserError(
            f"the budget ({budget}) is less than one step; use a larger budget, or a smaller train.max_tokens"
        )
    return facts | {"steps": round(steps)}


def measure_step_time(recipe: Recipe, model: nn.Module, task: Task, seconds: float) -> float:
    """Mean seconds of a training step on the device of the run."""
    model = model.to(resolve_device(recipe.train.device))
    training = TrainState(model, recipe.train, recipe.model.d_model, 10**6)
    strategy = parallelize(training, task, recipe.train)
    check_memory(training, strategy, recipe.train)
    model.train()
    rows = itertools.cycle(itertools.chain.from_iterable(task.epoch_batches(epoch) for epoch in range(2)))
    duration = min(max(PROBE_SHARE * seconds, MIN_PROBE_SECONDS), MAX_PROBE_SECONDS)
    start, n_steps = math.nan, -_WARMUP_STEPS
    while n_steps < 1 or time.perf_counter() - start < duration:
        if n_steps == 0:
            start = time.perf_counter()
        training.progress.step += 1
        train_step(strategy, [task.collate(next(rows)) for _ in range(recipe.train.accumulate)]).read()
        n_steps += 1
    return (time.perf_counter() - start) / n_steps


def with_trial_schedule(recipe: Recipe, steps: int) -> Recipe:
    """Recipe of a trial: ``steps`` steps, about fifteen evaluations, and no other work that costs time.

    If checkpoints are averaged, they are spread over the same share of the steps as in the recipe.
    """
    train = recipe.train
    every = max(1, steps // N_EVALUATIONS)
    log = max(d for d in range(1, 5) if every % d == 0)
    save = every
    if train.average_checkpoints:
        share = min(1.0, train.average_checkpoints * train.save_every / train.steps) if train.steps else 0.2
        save = max(1, int(steps * share) // train.average_checkpoints)
    settings = {
        "steps": steps,
        "epochs": None,
        "eval_every": every,
        "log_every": every // log,
        "save_every": save,
        "eval_bleu": False,
        "best_metric": "loss",
        "patience": None,
        "keep": max(train.average_checkpoints, 1),
        "tensorboard": False,
        "log": None,
    }
    return recipe.model_copy(update={"train": train.model_copy(update=settings)})
