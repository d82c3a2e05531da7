"""How well a model recovers what is hidden of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyhead.cli.measures.lines import Split, no_files, say_verdict, show
from polyhead.core.i18n import tr
from polyhead.evaluate.baselines import Baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.train.reporting import Reporters
from polyhead.train.tasks.base import HasBaselines


def measure(run: Run, files: Sequence[str], split: Split) -> None:
    """The table of a model that learned to recover what is hidden: always the same of it, so that models compare."""
    recipe = run.recipe
    assert recipe is not None
    if split == "test" and not files and not recipe.data.test:
        raise no_files(split, "FILE", run)
    # what is measured is opened as the validation text, in rows that every model can read
    changed: dict[str, Any] = {
        "test": None,
        "max_len": min(recipe.data.max_len, run.config.max_len),
    }
    if files:
        changed["valid"] = [str(Path(file).absolute()) for file in files]
    elif split == "test":
        changed["valid"] = recipe.data.test
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=changed)})
    task = TASK.get(recipe.task.name).open(recipe, run.tokenizer, Reporters())
    remarks = {
        "loss": tr("nats of a token asked for"),
        "ppl": tr("of a token asked for"),
        "accuracy": tr("the share of them that is right"),
        "f1": tr("of the tokens that were replaced"),
    }
    measured = task.evaluate(run.model)
    if "f1" in measured:
        remarks["loss"] = tr("nats: the generator's, and the encoder's as it is weighed")
    counts = read_counts(run.directory)
    baselines: Baselines = {}
    if counts and counts.vocab_size == run.tokenizer.vocab_size and isinstance(task, HasBaselines):
        baselines = task.baselines(counts, run, "valid")
    for name, value in measured.items():
        show(tr("perplexity" if name == "ppl" else name), value, remarks[name], baselines.get(name))
    say_verdict(run, measured, baselines)
