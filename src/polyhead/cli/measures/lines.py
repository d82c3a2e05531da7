"""What all measurements say alike: a line of figures, and that there is nothing to measure on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from polyhead.analysis.heat_map import columns
from polyhead.core.i18n import tr
from polyhead.data.arrays import Ints
from polyhead.data.corpus import CorpusReport
from polyhead.data.labelled import LabelledReport
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baseline, Baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.evaluate.verdict import describe
from polyhead.places import write_lines
from polyhead.run import Run
from polyhead.train.baselines import validation_losses

Split = Literal["test", "valid"]
# what a run without a recipe has learned, by its kind
TASKS = {"classifier": "classification", "decoder": "language-model", "encoder-decoder": "translation"}


def show(name: str, value: float, remark: str, baseline: Baseline | None = None) -> None:
    """One line of the table: a name and a remark, both in the current language, around a figure; its baseline at the end."""
    beside = f" ({baseline.describe(f'{baseline.value:.3f}')})" if baseline else ""
    print(f"{name}{' ' * (11 - columns(name))} {value:>9.3f}  {remark}{beside}", flush=True)


def say_verdict(run: Run, values: Mapping[str, float], baselines: Baselines) -> None:
    """A sentence where a score is not better than its baseline."""
    task = run.recipe.task.name if run.recipe else TASKS.get(run.kind)
    if verdict := describe(values, baselines, task, validation_losses(run.directory)):
        print(f"polyhead: {verdict}", file=sys.stderr)


def training_tokens(run: Run) -> Ints | None:
    """The count of each token in the training text (V,), if the run directory has those of this tokenizer."""
    counts = read_counts(run.directory)
    return counts.token_counts() if counts and counts.vocab_size == run.tokenizer.vocab_size else None


def no_files(split: str, files: str, run: Run) -> UserError:
    """There is nothing to measure on: what to type instead."""
    if run.recipe is None:
        return UserError(f"this run has no recipe that names files; give them: polyhead eval RUN {files}")
    held = run.recipe.data.valid or run.recipe.data.valid_share
    other = ", or take --split valid" if split == "test" and held else ""
    return UserError(f"this run's recipe names no {split} files; give them: polyhead eval RUN {files}{other}")


def column(name: str) -> str | int:
    """A column by name, or by number from 0."""
    return int(name) if name.isdecimal() else name


def write_answers(output: Path, found: Iterable[str], report: CorpusReport | LabelledReport) -> None:
    """A file with a line for each row that was read, in their order: a blank one for what was left out."""
    lines = [""] * report.read
    for row, line in zip(report.rows, found, strict=True):
        lines[row - 1] = line
    write_lines(output, lines)
    if left := len(lines) - len(report.rows):
        blank = tr(
            "{file}: {left:,} of {count:,} lines are blank, for what was skipped",
            file=output,
            left=left,
            count=len(lines),
        )
        print(f"polyhead: {blank}", file=sys.stderr)
