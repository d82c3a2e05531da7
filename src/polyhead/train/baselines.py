"""Baselines of a trained run: counts saved in its directory, and scores reported with its own."""

from __future__ import annotations

from pathlib import Path

from polyhead.core.errors import UserError
from polyhead.core.i18n import format_english
from polyhead.evaluate.baselines import Baselines, TrainingCounts, read_counts, write_counts
from polyhead.evaluate.run_facts import list_judged, scores_from_facts
from polyhead.evaluate.verdict import add_baseline_facts, describe_conclusion
from polyhead.run.run import Run
from polyhead.train.tasks.base import Task
from polyhead.viz.run_record import read_metrics


def save_training_counts(task: Task, run: Run) -> None:
    """Write the training counts that the baselines need into the run directory."""
    assert run.recipe is not None
    write_counts(run.recipe.out, task.count_training_tokens(run.tokenizer))


def find_baselines(task: Task, run: Run) -> dict[str, Baselines]:
    """Baselines of each evaluated split."""
    recipe = run.recipe
    assert recipe is not None
    counts = read_counts(recipe.out) or TrainingCounts()
    return {
        split: task.compute_baselines(counts, run, split) for split in recipe.data.splits if split != "train"
    }


def add_baselines(facts: dict[str, str], task: Task, run: Run) -> dict[str, str]:
    """Add the baselines of each split to the facts, and a verdict on the scores against them; in English."""
    assert run.recipe is not None
    verdict = None
    for split, baselines in find_baselines(task, run).items():
        values = scores_from_facts(facts, split)
        facts = add_baseline_facts(facts, split, baselines)
        # the test split is last, and its verdict counts if there is one
        if list_judged(values.keys() & baselines.keys()):
            losses = read_validation_losses(run.recipe.out)
            verdict = describe_conclusion(values, baselines, run.recipe.task.name, losses, format_english)
    return facts | ({"verdict": verdict} if verdict else {})


def read_validation_losses(directory: Path | None) -> list[float | None]:
    """Validation loss at each evaluation of a training; empty if there are no readable metrics."""
    try:
        rows = read_metrics(directory / "metrics.jsonl") if directory else []
    except UserError:  # a damaged file is an error only on resume
        return []
    return [row.get("loss") for row in rows if row.get("split") == "valid"]
