"""One trial: train a design with one seed as an ordinary run in its own process, then measure it.

The budget gives its number of steps, fixed before training. Its standard input is a pipe from the parent
process: when the parent ends, the trial saves and ends as well.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.compare import cost_metrics
from polyhead.compare.io import (
    CLOCK_FILE,
    OUTPUTS_FILE,
    RESULT_FILE,
    STEPS_FILE,
    TRIAL_FILE,
    JsonDict,
    read_json_file,
    write_json_file,
)
from polyhead.compare.sweep import Budget
from polyhead.compare.tasks.base import get_compared_task
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.cost.flops import update_flops_factor
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build
from polyhead.nn.device import resolve_device
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.baselines import find_baselines
from polyhead.train.distill import load_teachers, make_distillation_task, without_teacher
from polyhead.train.init_from import load_init_from
from polyhead.train.lock import RunLock
from polyhead.train.loggers import MetricsRow, ProgressBar, Reporter, Reporters, format_measures
from polyhead.train.loop import Outcome, check_memory, total_steps, train_step
from polyhead.train.run_training import run_training
from polyhead.train.signals import die_with
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.base import Task
from polyhead.train.train_state import TrainState
from polyhead.viz.run_record import StepTime, interpolate_seconds, read_metrics


def read_clock(path: Path) -> list[StepTime]:
    """Read the step times of a file; an incomplete last line is skipped."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [StepTime(*json.loads(line)) for line in lines]


class TrainingClock(Reporter):
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
) -> JsonDict:
    """Number of steps, and the values it is computed from. The timing probe changes the model's weights."""
    tokens = (
        get_compared_task(recipe.task.name).tokens_per_step(without_teacher(task)) * recipe.train.accumulate
    )
    facts: JsonDict = {"tokens_per_step": tokens}
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


LOCK_TIMEOUT = 60.0  # seconds to wait until another process releases the directory


def run_trial(directory: Path) -> bool:
    """Train, measure and write result.json, also for a failed trial. False if the trial was interrupted."""
    tune_malloc()
    trial_config = read_json_file(directory / TRIAL_FILE)
    if trial_config is None:
        raise UserError(f"{directory} is not a trial of a comparison: it has no {TRIAL_FILE}")
    recipe = Recipe.model_validate(trial_config["recipe"])
    try:
        wait_for_lock(directory)
        result = train_trial(recipe, trial_config, directory)
    except UserError as error:
        result = make_failure(str(error), directory, retry=False)
    except (MemoryError, torch.OutOfMemoryError):
        result = make_failure("out of memory", directory, retry=True)
    if result is None:
        return False
    write_json_file(directory / RESULT_FILE, result)
    return True


def train_trial(recipe: Recipe, trial_config: JsonDict, directory: Path) -> JsonDict | None:
    """Train and measure a trial; None if a signal ended it."""
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    tokenizer = Tokenizer.load(trial_config["tokenizer"])
    facts = resolve_steps(recipe, trial_config, tokenizer, directory)
    recipe = with_trial_schedule(recipe, facts["steps"])
    saved = checkpoint.list_steps(directory / "checkpoints")
    clock = TrainingClock(directory / CLOCK_FILE, max(saved, default=0))
    reporter = TrialReporter()
    results: JsonDict = {}

    def evaluate_run(run: Run, task: Task) -> dict[str, str]:
        reporter.is_done = True
        results["memory"] = cost_metrics.measure_peak_memory(next(run.model.parameters()).device)
        results.update(measure_quality(run, recipe, without_teacher(task), directory))
        other_metrics = get_compared_task(recipe.task.name).measures[1:]
        return {f"{results['split']} {m.column}": f"{results[m.name]:.{m.digits}f}" for m in other_metrics}

    run, outcome = run_training(
        recipe,
        resume=bool(saved),
        report=Reporters(clock, reporter),
        tokenizer=tokenizer,
        evaluator=evaluate_run,
    )
    if outcome.status == "interrupted":
        return None
    return {"status": "done", **facts, **results, **measure_costs(run, recipe, outcome, directory)}


def resolve_steps(recipe: Recipe, trial_config: JsonDict, tokenizer: Tokenizer, directory: Path) -> JsonDict:
    """Steps of this trial and their basis, from steps.json or, the first time, from the budget."""
    facts = read_json_file(directory / STEPS_FILE)
    if facts is None:
        silent = Reporters()
        task: Task = TASK.get(recipe.task.name).open(recipe, tokenizer, silent)
        origin = load_init_from(recipe)
        rows = max(origin.config.vocab_size if origin else 0, tokenizer.target_tokenizer.vocab_size)
        config = recipe.model.with_vocabulary(rows, task.labels, source_size=tokenizer.source_size)
        model = build(config, recipe.train.seed)
        flops = cost_metrics.flops_per_token(model, get_compared_task(recipe.task.name).typical_batch(task))
        facts = {"flops_per_token": flops, "parameters": sum(p.numel() for p in model.parameters())}
        if recipe.distill:
            task = make_distillation_task(
                task, recipe, load_teachers(recipe.distill, recipe.train.device), tokenizer
            )
        if trial_config.get("steps"):  # the steps of the design's first seed: all seeds train equally long
            facts["steps"] = trial_config["steps"]
        else:
            facts |= compute_steps(Budget(*trial_config["budget"]), recipe, model, task, flops)
        write_json_file(directory / STEPS_FILE, facts)
    return facts


def measure_quality(run: Run, recipe: Recipe, task: Any, directory: Path) -> JsonDict:
    """Compute all metrics and the share of dead units; write data for significance tests to outputs.json."""
    part = get_compared_task(recipe.task.name)
    metrics, outputs = part.evaluate(run, recipe, task)
    write_json_file(directory / OUTPUTS_FILE, outputs)
    # of the loss on the validation text, of the others on the measured split
    by_split = find_baselines(task, run)
    baselines = {**by_split.get(metrics["split"], {}), "loss": by_split.get("valid", {}).get("loss")}
    metrics["baselines"] = {name: found._asdict() for name, found in baselines.items() if found is not None}
    return {
        **metrics,
        "dead": cost_metrics.measure_dead_units(
            run.model, (part.make_batch(batch) for _, batch in task.eval_batches("valid"))
        ),
    }


def measure_costs(run: Run, recipe: Recipe, outcome: Outcome, directory: Path) -> JsonDict:
    """Costs of training and decoding, and the learning curve."""
    seconds = interpolate_seconds(read_clock(directory / CLOCK_FILE), outcome.step)
    part = get_compared_task(recipe.task.name)
    per_token, constant = cost_metrics.measure_cache_bytes(run, part.encode_memory(run))
    return {
        "seconds": seconds,
        "tokens": outcome.progress.tokens,
        "train_tokens_per_s": outcome.progress.tokens / max(seconds, 1e-9),
        "skipped": outcome.progress.skipped,
        "cache_per_token": per_token,
        "cache_constant": constant,
        "decode_tokens_per_s": part.measure_decode_speed(
            load(directory, fast=True, device=recipe.train.device), recipe
        ),
        "best_step": outcome.progress.best_step,
        "curve": read_curve(directory),
        "recipe": recipe.dump_yaml(),
    }


def make_failure(message: str, directory: Path, retry: bool) -> JsonDict:
    """Result of a failed trial; with ``retry`` the next call runs the trial again."""
    rows = read_metrics(directory / "metrics.jsonl")
    skipped = max((row.get("skipped", 0) for row in rows), default=0)
    facts = read_json_file(directory / STEPS_FILE) or {}
    return {
        "status": "failed",
        "message": message,
        "again": retry,
        "skipped": skipped,
        "curve": read_curve(directory),
        **facts,
    }


def read_curve(directory: Path) -> list[list[float]]:
    """Step, seconds of training and loss of every evaluation."""
    ticks, rows = read_clock(directory / CLOCK_FILE), read_metrics(directory / "metrics.jsonl")
    return [
        [r["step"], interpolate_seconds(ticks, r["step"]), r["loss"]] for r in rows if r["split"] == "valid"
    ]


class TrialReporter(Reporter):
    """Progress output of a trial: a bar on a terminal, else an indented line for each evaluation."""

    def __init__(self) -> None:
        self.bar = ProgressBar() if sys.stderr.isatty() else None
        self.has_started = self.is_done = False

    def log_train(self, row: MetricsRow) -> None:
        self.has_started = True
        if self.bar and not self.is_done:
            self.bar.log_train(row)

    def log_valid(self, row: MetricsRow) -> None:
        if not self.bar:
            print(f"    step {row['step']:>6}  {format_measures(row)}", file=sys.stderr, flush=True)

    def info(self, line: str) -> None:
        if self.has_started and not self.is_done:
            print(f"    {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def wait_for_lock(directory: Path) -> None:
    """Wait for a process that is still saving in the directory, such as a trial of a killed comparison."""
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            with RunLock(directory):
                return
        except UserError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def die_with_parent() -> None:
    """Save and end when the parent process ends."""
    parent = sys.__stdin__
    if parent is not None and stat.S_ISFIFO(os.fstat(parent.fileno()).st_mode):
        die_with(parent.fileno())
