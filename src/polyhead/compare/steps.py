"""How many steps a budget is for one design, and how a cell spends them: both fixed before it learns."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from torch import nn

from polyhead.analysis.cost.flops import times_forward
from polyhead.compare.budget import Budget
from polyhead.compare.tasks.base import compared
from polyhead.errors import UserError
from polyhead.nn.place import device_of
from polyhead.recipe import Recipe
from polyhead.train.distill import plain
from polyhead.train.loop import rehearse, total_steps, update
from polyhead.train.tasks.base import RunTask
from polyhead.train.training import Training

POINTS = 15  # evaluations of a cell, about
WARM = 5  # steps that are run before the clock starts: kernels are compiled and memory is claimed
# of the budget that the probe takes; its seconds, at least and at most
SHARE, LEAST, MOST = 0.05, 2.0, 20.0


def steps_for(
    budget: Budget, recipe: Recipe, model: nn.Module, task: RunTask, flops_per_token: float
) -> dict[str, Any]:
    """The steps, and what they were computed from. The model is spoilt by the probe."""
    tokens = compared(recipe.task.name).tokens_per_step(plain(task)) * recipe.train.accumulate
    facts: dict[str, Any] = {"tokens_per_step": tokens}
    if budget.kind == "recipe":
        steps = float(total_steps(task, recipe.train))
    elif budget.kind == "steps":
        steps = budget.amount
    elif budget.kind == "tokens":
        steps = budget.amount / tokens
    elif budget.kind == "flops":
        steps = budget.amount / (times_forward(recipe.train.adapt is not None) * flops_per_token * tokens)
    else:
        facts["seconds_per_step"] = probe(recipe, model, task, budget.amount)
        steps = budget.amount / facts["seconds_per_step"]
    if round(steps) < 1:
        raise UserError(
            f"the budget ({budget}) is less than one step; give more, or a smaller train.max_tokens"
        )
    return facts | {"steps": round(steps)}


def probe(recipe: Recipe, model: nn.Module, task: RunTask, seconds: float) -> float:
    """Seconds of a step of training where the run will be, the mean over some."""
    model = model.to(device_of(recipe.train.device))
    training = Training(model, recipe.train, recipe.model.d_model, 10**6)
    rehearse(model, task, recipe.train)
    model.train()
    rows = itertools.cycle(itertools.chain.from_iterable(task.plan(epoch) for epoch in range(2)))
    wanted = min(max(SHARE * seconds, LEAST), MOST)
    start, done = math.nan, -WARM
    while done < 1 or time.perf_counter() - start < wanted:
        if done == 0:
            start = time.perf_counter()
        training.progress.step += 1
        update(training, task, [task.batch(next(rows)) for _ in range(recipe.train.accumulate)], recipe.train)
        done += 1
    return (time.perf_counter() - start) / done


def schedule_of(recipe: Recipe, steps: int) -> Recipe:
    """The recipe of one cell: that many steps, about fifteen evaluations, and nothing else that costs time.

    Where checkpoints are averaged, these are spread over the same share of the steps as the recipe spreads them.
    """
    train = recipe.train
    every = max(1, steps // POINTS)
    log = max(d for d in range(1, 5) if every % d == 0)
    save = every
    if train.average:
        share = min(1.0, train.average * train.save_every / train.steps) if train.steps else 0.2
        save = max(1, int(steps * share) // train.average)
    settings = {
        "steps": steps,
        "epochs": None,
        "eval_every": every,
        "log_every": every // log,
        "save_every": save,
        "eval_bleu": False,
        "metric": "loss",
        "patience": None,
        "keep": max(train.average, 1),
        "tensorboard": False,
        "log": None,
    }
    return recipe.model_copy(update={"train": train.model_copy(update=settings)})
