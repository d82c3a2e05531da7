"""Read labeled texts, single or in pairs, from TSV or JSONL.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import MAX_INT, UserError, did_you_mean, format_value
from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.readers.files import check_file
from polyhead.data.readers.reader_common import (
    check_usable,
    count_problem,
    describe_boms,
    describe_skipped,
    describe_truncated,
    iter_split,
    join_names,
    number_lines,
)
from polyhead.data.readers.tabular import ColumnKey, TableRow, check_columns, infer_format, read_rows

_NUMBER = re.compile(r"[-+]?[0-9]{0,15}\.?[0-9]{1,30}")
_INTEGER_WITH_FRACTION = re.compile(r"-?[0-9]{1,15}\.0+")
_FEW_TEXTS = 20  # with more texts than this, at most half as many different labels are accepted


class LabeledExample(NamedTuple):
    """One text, or a pair of texts, and its label."""

    line: int
    texts: tuple[str, ...]
    label: str
    location: str  # line number; with several files also the name


@dataclass
class LabeledReport:
    """Read counts of labeled texts: total = used + empty + header + too_long + malformed + unknown_label.

    header is a line that repeats the header; too_long is a line longer than the limit of a line; a text with
    more tokens than fit is used, cut, and counted as ``truncated``. ``bom`` counts byte order marks at the
    start of further lines, and ``fractions`` the labels that are numbers with a fraction.
    """

    source_label: str
    total: int = 0
    used: int = 0
    empty: int = 0
    header: int = 0
    too_long: int = 0
    malformed: int = 0
    unknown_label: int = 0
    truncated: int = 0
    bom: int = 0
    fractions: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)
    # row numbers, from 1, of the examples that were returned
    row_numbers: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """One line in English.

        Example: 'train.tsv: 5,450 of 5,452 texts; skipped 2 blank (first: line 17); cut 1 (first: line 8)'.
        """
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        kinds = "empty", "header", "too_long", "malformed", "unknown_label"
        left_out = describe_skipped(self, tr, *kinds) + describe_boms(self, tr)
        counts = tr(
            "{where}: {kept:,} of {read:,} texts", where=self.source_label, kept=self.used, read=self.total
        )
        return counts + left_out + describe_truncated(self, self.truncated, tr)


@dataclass(frozen=True)
class LabeledFiles:
    """Files of labeled texts, their format, and the columns of the texts and the label.

    A ``validation_fraction`` of the texts is held out, all lines of a text (of a pair, its first text) in the
    same split.
    """

    files: tuple[Path, ...]
    format: Literal["tsv", "jsonl"]
    text_columns: tuple[ColumnKey, ...]
    label_column: ColumnKey
    validation_fraction: float = 0.0  # fraction of the texts that is held out
    is_validation: bool = False  # whether these are the held-out lines, or the others

    @property
    def source_label(self) -> str:
        return join_names(self.files)

    @property
    def columns_by_role(self) -> dict[str, ColumnKey]:
        """The columns by role."""
        names = (
            ["text"] if len(self.text_columns) == 1 else [f"text[{i}]" for i in range(len(self.text_columns))]
        )
        return dict(zip(names, self.text_columns, strict=True)) | {"label": self.label_column}

    def iter_examples(
        self, report: LabeledReport, labels: Sequence[str] | None = None
    ) -> Iterator[LabeledExample]:
        """Yield the usable examples, only those with one of ``labels`` if given.

        The others are counted in the report. Raises a UserError if none is usable.
        """
        # 1.0 is the label 1, unless the model has a label of that name
        known_labels = None if labels is None else {normalize_label(label): label for label in labels}
        rows = number_lines(
            self.files, partial(read_rows, format=self.format, columns_by_role=self.columns_by_role)
        )
        for place, line, row in iter_split(
            rows, _get_first_text, self.validation_fraction, self.is_validation, "text", self.source_label
        ):
            if row == "bom":
                count_problem(report, row, place)
                continue
            report.total += 1
            example = row if isinstance(row, str) else _parse_example(line, row, place)
            report.fractions += not isinstance(row, str) and has_fraction(row[-1])
            if isinstance(example, str):
                count_problem(report, example, place + _describe_bad_label(row))
            elif known_labels is not None and example.label not in known_labels:
                hint = did_you_mean(example.label, known_labels.values()).removeprefix("; ")
                count_problem(
                    report, "unknown_label", f"{place}, {example.label!r}" + (f", {hint}" if hint else "")
                )
            else:
                report.used += 1
                yield example if known_labels is None else example._replace(label=known_labels[example.label])
        among = (
            f"; the labels are {', '.join(sorted(known_labels.values())[:20])}"
            if known_labels and report.unknown_label
            else ""
        )
        check_usable(report, "text", among)


def open_labeled(
    files: Sequence[str | Path],
    *,
    root: str | Path = ".",
    format: str = "auto",
    text: Sequence[ColumnKey] = ("text",),
    label: ColumnKey = "label",
    validation_fraction: float = 0.0,
    is_validation: bool = False,
) -> LabeledFiles:
    """Open labeled files: infer their format and check the columns.

    Mistakes in the names raise a UserError here.
    """
    if not files:
        raise UserError("no files: expected one or several TSV or JSONL files")
    paths = tuple(check_file(Path(root) / file) for file in files)
    if format == "parallel":
        raise UserError("format 'parallel' has no labels: labelled texts must be tsv or jsonl")
    table_format = {"tsv": "tsv", "jsonl": "jsonl"}.get(format) or infer_format(paths)
    if table_format is None:
        raise UserError(
            f"cannot detect the format of {paths[0].name}: name it .tsv, .csv or .jsonl, or set data.format"
        )
    labeled_files = LabeledFiles(
        paths,
        "tsv" if table_format == "tsv" else "jsonl",
        tuple(text),
        label,
        validation_fraction,
        is_validation,
    )
    for path in paths:
        check_columns(path, labeled_files.format, labeled_files.columns_by_role)
    return labeled_files


def collect_labels(labeled_files: LabeledFiles) -> tuple[str, ...]:
    """The distinct labels, sorted.

    A UserError if there is only one, or more than one for every two texts, or if they are scores: numbers
    with fractions.
    """
    report = LabeledReport(labeled_files.source_label)
    labels = {example.label for example in labeled_files.iter_examples(report)}
    if report.fractions and all(map(is_number, labels)):
        raise UserError(
            f"{labeled_files.source_label}: the labels are scores, {report.fractions:,} of "
            f"{report.total:,} with a fraction; a classifier needs classes: round them to integers, or write "
            "them as words"
        )
    if len(labels) < 2:
        raise UserError(
            f"{labeled_files.source_label}: every text has the label {labels.pop()!r}; there is "
            "nothing to classify"
        )
    if report.used > _FEW_TEXTS and 2 * len(labels) > report.used:
        raise UserError(
            f"{labeled_files.source_label}: {len(labels):,} different labels for {report.used:,} texts, "
            f"such as {min(labels)[:40]!r}; is {labeled_files.label_column!r} the column of the label?"
        )
    return tuple(sorted(labels))


def read_labeled_texts(labeled_files: LabeledFiles) -> Iterator[str]:
    """Yield every text, for training a tokenizer."""
    for example in labeled_files.iter_examples(LabeledReport(labeled_files.source_label)):
        yield from example.texts


def read_labeled(
    labeled_files: LabeledFiles, labels: Sequence[str] | None = None, limit: int | None = None
) -> tuple[list[LabeledExample], LabeledReport]:
    """(usable examples, report); for sets that fit into memory, such as validation and test."""
    report, examples = LabeledReport(labeled_files.source_label), []
    for example in islice(
        labeled_files.iter_examples(report, labels), None if limit is None else min(limit, MAX_INT)
    ):
        examples.append(example)
        report.row_numbers.append(report.total)
    return examples, report


def _parse_example(line: int, row: tuple[Any, ...], location: str) -> LabeledExample | str:
    """The values of a line as texts and label, or the kind of problem.

    A label may be an integer or a boolean.
    """
    *texts, label = row
    if not all(isinstance(text, str) for text in texts) or not is_label(label):
        return "malformed"
    if isinstance(label, float):
        label = int(label)
    if any(map(is_blank, texts)):
        return "empty"
    label_name = str(label).lower() if isinstance(label, bool) else normalize_label(str(label))
    return (
        LabeledExample(line, tuple(texts), label_name, location) if not is_blank(label_name) else "malformed"
    )


def normalize_label(label: str) -> str:
    """A label without blanks around it; an integer without a fraction of zeros: 1.0 is 1."""
    label = label.strip()
    return str(int(float(label))) if _INTEGER_WITH_FRACTION.fullmatch(label) else label


def has_fraction(value: Any) -> bool:
    """Whether a value is a number, or the text of one, with a fraction that is not 0."""
    if isinstance(value, str) and is_number(value):
        value = float(value)
    return isinstance(value, float) and not value.is_integer()


def is_number(value: Any) -> bool:
    """Whether a value is a number, or the text of one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe_single_class(labels: Iterable[str], source_label: str, tr: Translate = tr) -> str:
    """A warning if all labels are the same; "" if not."""
    if len(distinct := set(labels)) != 1:
        return ""
    return tr(
        "every text of {where} has the label {label}: scores only show how often it is predicted",
        where=source_label,
        label=repr(distinct.pop()),
    )


def is_label(value: Any) -> bool:
    """Whether a value is a label: a string, an integer or a boolean.

    A float such as 1.0 counts as an integer, because columns with gaps contain such floats.
    """
    return value.is_integer() if isinstance(value, float) else isinstance(value, str | int)


def _get_first_text(row: tuple[str, int, TableRow]) -> str | None:
    """The text that decides the split of a row; None if it has none."""
    text = row[2][0]
    return None if isinstance(row[2], str) or not isinstance(text, str) or is_blank(text) else text


def _describe_bad_label(row: Any) -> str:
    """What is wrong with the label of a row; "" if nothing is."""
    if isinstance(row, str) or is_label(row[-1]):
        return ""
    return f", label {format_value(row[-1])}, expected text, an integer, true or false"
