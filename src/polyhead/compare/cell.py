"""One cell: a design with a seed, trained as an ordinary run in a process of its own, then measured.

The process that asked for it is tied to it by its standard input: when that ends, the cell saves and ends as well.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch

from polyhead.analysis.forecast import seconds_at
from polyhead.analysis.run_record import read_metrics
from polyhead.compare import files, measure
from polyhead.compare.budget import Budget
from polyhead.compare.clock import Clock, read_clock
from polyhead.compare.files import read_json, write_json
from polyhead.compare.steps import schedule_of, steps_for
from polyhead.compare.tasks.base import compared
from polyhead.errors import UserError
from polyhead.fast.memory import tune_memory
from polyhead.loading import load
from polyhead.models import build
from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train import checkpoint
from polyhead.train.baselines import find_baselines
from polyhead.train.distill import distilled, open_teachers, plain
from polyhead.train.lock import RunLock
from polyhead.train.loop import Outcome
from polyhead.train.pipeline import run_training
from polyhead.train.reporting import Bar, Reporters, Row, measures
from polyhead.train.signals import end_with
from polyhead.train.start import open_start
from polyhead.train.tasks.base import RunTask

PATIENCE = 60.0  # seconds that another process gets to leave the directory

Result = dict[str, Any]


def run_cell(directory: Path) -> bool:
    """Train, measure and write result.json; a failure that would come again is a result too. False if interrupted."""
    tune_memory()
    asked = read_json(directory / files.CELL)
    if asked is None:
        raise UserError(f"{directory} is no cell of a comparison: it has no {files.CELL}")
    recipe = Recipe.model_validate(asked["recipe"])
    try:
        wait_for(directory)
        result = learn(recipe, asked, directory)
    except UserError as error:
        result = failure(str(error), directory, again=False)
    except (MemoryError, torch.OutOfMemoryError):
        result = failure("out of memory", directory, again=True)
    if result is None:
        return False
    write_json(directory / files.RESULT, result)
    return True


def learn(recipe: Recipe, asked: dict[str, Any], directory: Path) -> Result | None:
    """All of a cell's work; None if a signal ended it."""
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    tokenizer = Tokenizer.load(asked["tokenizer"])
    facts = fixed_steps(recipe, asked, tokenizer, directory)
    recipe = schedule_of(recipe, facts["steps"])
    saved = checkpoint.steps(directory / "checkpoints")
    clock = Clock(directory / files.CLOCK, max(saved, default=0))
    shown = Shown()
    found: Result = {}

    def judge(run: Run, task: RunTask) -> dict[str, str]:
        shown.over = True
        found["memory"] = measure.peak_memory(next(run.model.parameters()).device)
        found.update(quality(run, recipe, plain(task), directory))
        others = compared(recipe.task.name).measures[1:]
        return {f"{found['split']} {m.column}": f"{found[m.name]:.{m.digits}f}" for m in others}

    run, outcome = run_training(
        recipe, resume=bool(saved), report=Reporters(clock, shown), tokenizer=tokenizer, judge=judge
    )
    if outcome.how == "interrupted":
        return None
    return {"status": "done", **facts, **found, **speed(run, recipe, outcome, directory)}


def fixed_steps(
    recipe: Recipe, asked: dict[str, Any], tokenizer: Tokenizer, directory: Path
) -> dict[str, Any]:
    """The steps of this cell, from steps.json or, the first time, from the budget."""
    facts = read_json(directory / files.STEPS)
    if facts is None:
        silent = Reporters()
        task: RunTask = TASK.get(recipe.task.name).open(recipe, tokenizer, silent)
        origin = open_start(recipe)
        rows = max(origin.config.vocab_size if origin else 0, tokenizer.vocab_size)
        model = build(recipe.model.with_vocabulary(rows, task.labels), recipe.train.seed)
        flops = measure.flops_per_token(model, compared(recipe.task.name).typical(task))
        facts = {"flops_per_token": flops, "parameters": sum(p.numel() for p in model.parameters())}
        if recipe.distill:
            task = distilled(task, recipe, open_teachers(recipe.distill, recipe.train.device), tokenizer)
        if asked.get("steps"):  # those of the same design's first seed: all seeds learn equally long
            facts["steps"] = asked["steps"]
        else:
            facts |= steps_for(Budget(*asked["budget"]), recipe, model, task, flops)
        write_json(directory / files.STEPS, facts)
    return facts


def quality(run: Run, recipe: Recipe, task: RunTask, directory: Path) -> Result:
    """Every measure of the task, dead units, and in outputs.json what significance is computed from."""
    part = compared(recipe.task.name)
    found, kept = part.quality(run, recipe, task)
    write_json(directory / files.OUTPUTS, kept)
    found["baselines"] = baselines(run, task, found["split"])
    return {**found, "dead": measure.dead_units(run.model, part.pieces(task))}


def baselines(run: Run, task: RunTask, split: str) -> Result:
    """The baseline of each measure: of the loss that of the validation text, of the others that of their text."""
    by_split = find_baselines(task, run)
    known = {**by_split.get(split, {}), "loss": by_split.get("valid", {}).get("loss")}
    return {name: one._asdict() for name, one in known.items() if one is not None}


def speed(run: Run, recipe: Recipe, outcome: Outcome, directory: Path) -> Result:
    """Costs of training and decoding, and the curves."""
    seconds = seconds_at(read_clock(directory / files.CLOCK), outcome.step)
    part = compared(recipe.task.name)
    per_token, constant = measure.cache_bytes(run, part.memory(run))
    return {
        "seconds": seconds,
        "tokens": outcome.progress.tokens,
        "train_tokens_per_s": outcome.progress.tokens / max(seconds, 1e-9),
        "skipped": outcome.progress.skipped,
        "cache_per_token": per_token,
        "cache_constant": constant,
        "decode_tokens_per_s": part.decode_speed(
            load(directory, fast=True, device=recipe.train.device), recipe
        ),
        "best_step": outcome.progress.best_step,
        "curve": curve(directory),
        "recipe": recipe.dump_yaml(),
    }


def failure(message: str, directory: Path, again: bool) -> Result:
    """A result that says why there is none; with ``again`` it is tried once more by the next call."""
    rows = read_metrics(directory / "metrics.jsonl")
    skipped = max((row.get("skipped", 0) for row in rows), default=0)
    facts = read_json(directory / files.STEPS) or {}
    return {
        "status": "failed",
        "message": message,
        "again": again,
        "skipped": skipped,
        "curve": curve(directory),
        **facts,
    }


def curve(directory: Path) -> list[list[float]]:
    """Step, seconds of training and loss of every evaluation."""
    ticks, rows = read_clock(directory / files.CLOCK), read_metrics(directory / "metrics.jsonl")
    return [[r["step"], seconds_at(ticks, r["step"]), r["loss"]] for r in rows if r["split"] == "valid"]


class Shown:
    """What a person sees of a cell: a bar at a terminal, else an indented line for each evaluation."""

    def __init__(self) -> None:
        self.bar = Bar() if sys.stderr.isatty() else None
        self.learning = self.over = False

    def train(self, row: Row) -> None:
        self.learning = True
        if self.bar and not self.over:
            self.bar.train(row)

    def valid(self, row: Row) -> None:
        if not self.bar:
            print(f"    step {row['step']:>6}  {measures(row)}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        if self.learning and not self.over:
            print(f"    {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


def wait_for(directory: Path) -> None:
    """Give a process that is still saving here time to end, such as the cell of a comparison that was killed."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with RunLock(directory):
                return
        except UserError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def end_with_parent() -> None:
    """Save and end when the process that started this one is gone."""
    parent = sys.__stdin__
    if parent is not None and stat.S_ISFIFO(os.fstat(parent.fileno()).st_mode):
        end_with(parent.fileno())
