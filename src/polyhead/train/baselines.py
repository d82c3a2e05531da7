"""Baselines of a run that has been trained: kept in its directory, and shown beside its scores."""

from __future__ import annotations

from pathlib import Path

from polyhead.analysis.run_record import read_metrics
from polyhead.core.i18n import format_english
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines
from polyhead.evaluate.training_counts import TrainingCounts, read_counts, write_counts
from polyhead.evaluate.verdict import describe, values_of, with_baselines
from polyhead.run import Run
from polyhead.train.distill import plain
from polyhead.train.tasks.base import HasBaselines, RunTask


def keep_counts(task: RunTask, run: Run) -> None:
    """Write what the baselines need of the training text into the run directory."""
    task = plain(task)
    if isinstance(task, HasBaselines) and run.recipe is not None:
        write_counts(run.recipe.out, task.count_training(run.tokenizer))


def find_baselines(task: RunTask, run: Run) -> dict[str, Baselines]:
    """Those of each text that a run is measured on; none of a task that has none."""
    task, recipe = plain(task), run.recipe
    assert recipe is not None
    if not isinstance(task, HasBaselines):
        return {}
    counts = read_counts(recipe.out) or TrainingCounts()
    return {split: task.baselines(counts, run, split) for split in recipe.data.splits if split != "train"}


def add_baselines(facts: dict[str, str], task: RunTask, run: Run) -> dict[str, str]:
    """The facts with the baselines of each split, and a sentence where a score is not above its own; in English."""
    assert run.recipe is not None
    verdict = None
    for split, baselines in find_baselines(task, run).items():
        values = values_of(facts, split)
        facts = with_baselines(facts, split, baselines)
        # the test text is the last, and counts where it is measured
        if values.keys() & baselines.keys():
            losses = validation_losses(run.recipe.out)
            verdict = describe(values, baselines, run.recipe.task.name, losses, format_english)
    return facts | ({"verdict": verdict} if verdict else {})


def validation_losses(directory: Path | None) -> list[float | None]:
    """The loss at each evaluation of a training; none where the run directory does not tell."""
    try:
        rows = read_metrics(directory / "metrics.jsonl") if directory else []
    except UserError:  # damaged, which concerns those who go on training
        return []
    return [row.get("loss") for row in rows if row.get("split") == "valid"]
