"""Output that all evaluations share: table lines, verdicts, and the error for missing files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len

from polyhead.cli.line_io import print_warning
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.hub import HUB_PREFIX
from polyhead.core.i18n import tr
from polyhead.core.output_paths import write_lines
from polyhead.data.readers.labeled import LabeledReport
from polyhead.data.readers.parallel_corpus import CorpusReport
from polyhead.data.readers.tabular import inherit_format
from polyhead.data.stores.build_cache import IdArray
from polyhead.evaluate.baselines import Baseline, Baselines, read_counts
from polyhead.evaluate.verdict import describe_verdict
from polyhead.run.run import Run
from polyhead.tokenizers.unknown_tokens import UnknownTokens
from polyhead.train.baselines import read_validation_losses

Split = Literal["test", "valid"]
JsonMeasures = dict[str, Any]
"""What ``polyhead eval --json`` prints."""
# training task of a run without a recipe, by its kind
TASK_BY_KIND = {
    "classifier": "classification", "token classifier": "token-classification",
    "question answerer": "question-answering",
    "decoder": "language-model", "encoder-decoder": "translation",
}  # fmt: skip
_TITLES = {"ppl": "perplexity", "word_ppl": "word-ppl", "bits_per_char": "bits"}  # of lines, by measure


def print_measure(name: str, value: float, remark: str, baseline: Baseline | None = None) -> None:
    """Print a line of the table: name, value and remark, with the baseline at the end."""
    suffix = f" ({baseline.describe(f'{baseline.value:.3f}')})" if baseline else ""
    print(f"{name}{' ' * (11 - cell_len(name))} {value:>9.3f}  {remark}{suffix}", flush=True)


def to_json_measures(values: Mapping[str, float], baselines: Baselines) -> JsonMeasures:
    """The measures of an evaluation and their baselines for ``--json``."""
    known = {name: baseline._asdict() for name, baseline in baselines.items() if name in values}
    return {"measures": dict(values), "baselines": known}


def print_table(
    run: Run,
    values: Mapping[str, float],
    remarks: Mapping[str, str],
    baselines: Baselines,
    unknown: UnknownTokens,
) -> JsonMeasures:
    """Print a line for each measure and what follows the table; returns the measures for ``--json``."""
    for name, value in values.items():
        print_measure(tr(_TITLES.get(name, name)), value, remarks[name], baselines.get(name))
    print_table_end(run, values, baselines, unknown)
    return to_json_measures(values, baselines)


def print_table_end(
    run: Run, values: Mapping[str, float], baselines: Baselines, unknown: UnknownTokens
) -> None:
    """Print the share of unknown tokens, if any, and a sentence if a score is not better than its baseline.

    Frequent unknown tokens get a warning.
    """
    if unknown.unknown:
        remark = tr("% of {count:,} tokens, the vocabulary lacks them", count=unknown.total)
        print_measure(tr("unknown"), 100 * unknown.share, remark)
    if unknown.is_frequent:
        print_warning(unknown.describe_warning())
    task = run.recipe.task.name if run.recipe else TASK_BY_KIND.get(run.kind)
    if verdict := describe_verdict(values, baselines, task, read_validation_losses(run.directory)):
        print_warning(verdict)


def load_token_counts(run: Run) -> IdArray | None:
    """Load the token counts of the training text (V,), if the run directory has them for this tokenizer."""
    counts = read_counts(run.directory)
    is_same = counts and counts.vocab_size == run.tokenizer.target_tokenizer.vocab_size
    return counts.token_counts() if counts and is_same else None


def require_split(run: Run, split: str, files: str = "FILE") -> Recipe:
    """Return the recipe of a run that has files of a split; else a UserError with what to type instead."""
    if run.recipe is None:
        raise UserError(f"this run has no recipe with data files; pass files: {eval_command(run, files)}")
    if split in run.recipe.data.splits:
        print_recipe_files(run.recipe, split)
        return run.recipe
    has_validation = run.recipe.data.valid or run.recipe.data.valid_fraction
    hint = ", or use --split valid" if split == "test" and has_validation else ""
    raise UserError(f"this run's recipe has no {split} files; pass files: {eval_command(run, files)}{hint}")


def eval_command(run: Run, arguments: str) -> str:
    """``polyhead eval runs/mt SOURCE TARGET``, for messages."""
    return f"polyhead eval {shlex.quote(str(run.directory or 'RUN'))} {arguments}"


def print_recipe_files(recipe: Recipe, split: str) -> None:
    """Print on standard error which files of the recipe are read, since the run may be somebody else's."""
    names = recipe.data.list_files(split) or recipe.data.list_files("train")
    paths = [name if name.startswith(HUB_PREFIX) else str(recipe.data.root / name) for name in names]
    print_warning(tr("reading {files}, named in the recipe of the run", files=", ".join(paths)))


def parse_column(name: str) -> str | int:
    """Parse a column name, or a column number from 0."""
    return int(name) if name.isdecimal() else name


def file_options(run: Run, files: Sequence[str], *columns: str) -> dict[str, Any]:
    """Options to read files in the format of the training files, with its ``columns``."""
    if run.recipe is None:
        return {}
    data = run.recipe.data
    format = inherit_format(files, data.list_files("train"), data.format)
    return {"format": format} | {name: getattr(data, name) for name in columns}


def write_output_lines(output: Path, outputs: Iterable[str], report: CorpusReport | LabeledReport) -> None:
    """Write a line for each row that was read, in order; the line of a skipped row is blank."""
    lines = [""] * report.total
    for row, line in zip(report.row_numbers, outputs, strict=True):
        lines[row - 1] = line
    write_lines(output, lines)
    print_warning(tr("wrote {path}", path=output))
    if num_blank := len(lines) - len(report.row_numbers):
        message = "{file}: {left:,} of {count:,} lines are blank, for skipped inputs"
        print_warning(tr(message, file=output, left=num_blank, count=len(lines)))
