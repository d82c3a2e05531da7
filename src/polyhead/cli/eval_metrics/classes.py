"""Evaluate a classifier."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from polyhead.cli.eval_metrics.printing import (
    JsonMeasures,
    Split,
    eval_command,
    file_options,
    parse_column,
    print_measure,
    print_table,
    require_split,
    write_output_lines,
)
from polyhead.cli.line_io import escape_terminal, print_warning, to_one_column
from polyhead.config.model import TOKEN_LABELS
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.readers.labeled import (
    describe_ambiguous_texts,
    describe_single_class,
    open_labeled,
    read_labeled,
)
from polyhead.data.readers.spans import OUTSIDE, list_span_labels
from polyhead.evaluate.baselines import Baselines, read_counts
from polyhead.evaluate.classify import MAX_MATRIX_CLASSES, ConfusionCounts, HardText, list_confusions
from polyhead.run.run import Run
from polyhead.tokenizers.unknown_tokens import count_unknown
from polyhead.train.tasks.classification import get_labeled_task, open_split_labeled

_N_HARDEST = 5  # texts that are listed


def evaluate_classifier(
    run: Run,
    files: Sequence[str],
    split: Split,
    *,
    batch_tokens: int = 4096,
    limit: int | None = None,
    output: Path | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
) -> JsonMeasures:
    """Print the table of a classifier; ``text`` and ``label`` override the columns of the recipe."""
    columns: dict[str, Any] = {"text": [parse_column(one) for one in text]} if text else {}
    columns |= {} if label is None else {"label": parse_column(label)}
    text_columns = run.recipe.data.text if run.recipe else text
    if text and len(text) != len(text_columns):
        raise UserError(
            f"--text names {len(text)} column{'s' * (len(text) > 1)}; expected {len(text_columns)}, as in "
            f"the run's training: {' '.join(f'--text {name}' for name in text_columns)}"
        )
    task = get_labeled_task(run.config.problem_type)
    if files:
        options = file_options(run, files, "text", "label") | columns
        dataset = open_labeled(files, **options, kind=task.label_kind)
    elif columns:
        raise UserError(f"--text and --label require files: {eval_command(run, 'FILE --text COLUMN')}")
    else:
        dataset = open_split_labeled(require_split(run, split), split)
    examples, report = read_labeled(dataset, run.config.labels, limit)
    print(report.describe(), file=sys.stderr)
    given_lines, given_texts, given_labels, *_ = zip(*examples, strict=True) if examples else [()] * 3
    if run.config.problem_type == "single_label_classification":
        for warning in (
            describe_single_class(given_labels, report.source_label),
            describe_ambiguous_texts(given_texts, given_labels, given_lines, report.source_label),
        ):
            if warning:
                print_warning(warning)
    start = time.perf_counter()
    result = task.measure_run(run.members, examples, run.generation, batch_tokens)
    seconds = time.perf_counter() - start
    if result.n_truncated:
        values = {"most": result.max_tokens, "cut": result.n_truncated, "count": len(examples)}
        print_warning(tr("truncated to {most} tokens: {cut:,} of {count:,} texts", **values))
    baselines: Baselines = {}
    counts, labels = read_counts(run.directory), run.config.labels
    if counts and (counts.texts or counts.labels.keys() == set(labels)):
        baselines = task.baselines(counts, result.targets, labels)
    unknown = count_unknown((text for example in examples for text in example.texts), run.tokenizer)
    measures = print_table(run, result.measures, result.remarks, baselines, unknown)
    remark = tr("texts/s, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    print_measure(tr("speed"), len(examples) / seconds, remark)
    if result.confusion is not None:
        is_tagging = run.config.problem_type == TOKEN_LABELS
        print_confusion(result.confusion, (OUTSIDE, *list_span_labels(labels)) if is_tagging else labels)
    print_hardest(result.hardest[:_N_HARDEST], run.config.problem_type == "regression")
    if output is not None:
        write_output_lines(output, map(to_one_column, result.predictions), report)
    return measures


def print_confusion(counts: ConfusionCounts, labels: Sequence[str]) -> None:
    """Print the confusion matrix, or the most frequent confusions of many classes."""
    if len(labels) > MAX_MATRIX_CLASSES:
        if confusions := list_confusions(counts):
            print("\n" + tr("most frequent errors: number of texts, label → prediction"))
        for i, j, count in confusions:
            print(f"{count:>9,}  {clip_cells(labels[i], 40)} → {clip_cells(labels[j], 40)}")
        return
    print("\n" + tr("confusion matrix: a row for each label, a column for each prediction"))
    names = [clip_cells(label, 20) for label in labels]
    first = max(map(cell_len, names))
    widths = [
        max(cell_len(name), len(f"{column.max():,}")) for name, column in zip(names, counts.T, strict=True)
    ]
    head = (" " * (width - cell_len(name)) + name for name, width in zip(names, widths, strict=True))
    print(" " * first, *head, sep="  ")
    for name, row in zip(names, counts.tolist(), strict=True):
        cells = (f"{count:>{width},}" for count, width in zip(row, widths, strict=True))
        print(name + " " * (first - cell_len(name)), *cells, sep="  ")


def print_hardest(hardest: Sequence[HardText], is_regression: bool) -> None:
    """Print the texts with the least probable labels, or the largest errors of their numbers."""
    head = tr("hardest texts: line, probability of the label, label → prediction, text")
    if is_regression:
        head = tr("hardest texts: line, error, number → prediction, text")
    print("\n" + head)
    for example, prediction, probability in hardest:
        sides = f"{clip_cells(example.label, 40)} → {clip_cells(prediction, 40)}"
        text = clip_cells(" | ".join(example.texts), 100)
        print(f"{example.location}  {probability:.4f}  {sides}  {text}")


def clip_cells(text: str, width: int) -> str:
    """A text in one column, or its beginning and an ellipsis if it needs more cells of the terminal."""
    text = escape_terminal(to_one_column(text))
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
