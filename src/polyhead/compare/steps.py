"""How many steps a budget is for one design: fixed before it learns, so that its schedule is well defined."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from torch import nn

from polyhead.analysis.cost.flops import TRAINING
from polyhead.compare.budget import Budget
from polyhead.compare.tasks.base import compared
from polyhead.errors import UserError
from polyhead.nn.place import device_of
from polyhead.recipe import Recipe
from polyhead.train.distill import plain
from polyhead.train.loop import rehearse, total_steps, update
from polyhead.train.tasks.base import RunTask
from polyhead.train.training import Training

WARM = 5  # steps that are run before the clock starts: kernels are compiled and memory is claimed
SHARE, LEAST, MOST = 0.05, 2.0, 20.0  # of the budget that the probe takes; seconds
"""The probe takes 5 % of the budget, but 2 seconds at least and 20 at most."""


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
        steps = budget.amount / (TRAINING * flops_per_token * tokens)
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
