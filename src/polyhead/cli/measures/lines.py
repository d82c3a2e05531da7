"""What all measurements say alike: a line of figures, and that there is nothing to measure on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from polyhead.analysis.heat_map import columns
from polyhead.core.i18n import tr
from polyhead.data.corpus import CorpusReport
from polyhead.data.labelled import LabelledReport
from polyhead.errors import UserError
from polyhead.places import write_lines
from polyhead.run import Run

Split = Literal["test", "valid"]


def show(name: str, value: float, remark: str) -> None:
    """One line of the table: a name and a remark, both in the current language, around a figure."""
    print(f"{name}{' ' * (11 - columns(name))} {value:>9.3f}  {remark}", flush=True)


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
