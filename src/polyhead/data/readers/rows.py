"""Rows of files with columns by role, whatever their format: read, counted, and split for validation.

Rows that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import MAX_INT, UserError
from polyhead.core.i18n import Translate, format_english, tr, translate_message
from polyhead.data.readers.tabular import ColumnsByRole, check_columns, find_non_string, read_rows

_Row = TypeVar("_Row")
T = TypeVar("T")
_LINE = re.compile(r"\bline (\d+(?:,\d{3})*)(?:, (.*))?", re.DOTALL)  # with the reason, if there is one
_MAX_EXAMPLES = 5  # locations kept for each kind of problem
# how messages call the counters of a report
_KIND_WORDS = {
    "empty": "blank",
    "header": "equal to the header",
    "too_long": "overlong",
    "malformed": "broken",
    "unsupported": "unfit",
    "unknown_label": "with an unknown label",
    "missing_label": "without a label",
}


@dataclass
class PartsReport:
    """Counts of what a filter drops, and the reports of several corpora."""

    n_filtered: dict[str, int] = field(default_factory=dict, kw_only=True)  # texts that break a rule, by rule
    parts: list[Any] = field(default_factory=list, kw_only=True)
    source_label: str

    def __post_init__(self) -> None:
        self.parts = [type(self)(**part) if isinstance(part, dict) else part for part in self.parts]

    def iter_parts(self, files: Any) -> Iterator[tuple[Any, Self]]:
        """Yield each of several corpora with a report, which is kept and added to this one; of files that
        are a single corpus, these with this report.
        """
        for corpus in files.corpora:
            part = type(self)(corpus.source_label)
            yield corpus, part
            for name, count in vars(part).items():
                if isinstance(count, int):
                    setattr(self, name, getattr(self, name) + count)
            self.parts.append(part)
        if not files.corpora:
            yield files, self

    def __str__(self) -> str:
        """One line in English."""
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The reports of the corpora, in the current language."""
        return tr(", ").join(part.describe(tr) for part in self.parts)

    def describe_filtered(self, tr: Translate) -> str:
        """'; filtered 12 by min_chars, 3 by unique'; "" without any."""
        counts = [tr("{count:,} by {rule}", count=n, rule=rule) for rule, n in self.n_filtered.items()]
        return tr("; filtered {counts}", counts=tr(", ").join(counts)) if counts else ""


@dataclass
class ReadReport(PartsReport):
    """Read counts: total = used + the rows of each kind that cannot be used.

    header is a line that repeats the header; too_long is a line longer than the limit of a line, or a row
    that does not fit; unsupported is a conversation without an answer that is learned, or with a part that
    cannot be read or that the chat format cannot write, such as an image, tools or an order of roles: it is
    never used without this part. A row that is used, but cut to fit, is also counted as ``truncated``.
    ``bom`` counts byte order marks at the start of further lines, and ``fractions`` the labels that are
    numbers with a fraction.
    """

    unit: ClassVar[str]  # what a row is
    counts: ClassVar[str]

    total: int = 0
    used: int = 0
    answers: int = 0
    empty: int = 0
    header: int = 0
    too_long: int = 0
    malformed: int = 0
    unsupported: int = 0
    unknown_label: int = 0
    missing_label: int = 0
    truncated: int = 0
    bom: int = 0
    fractions: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)  # locations of the first rows of each kind
    # row numbers, from 1, of the rows that were returned
    row_numbers: list[int] = field(default_factory=list)

    @property
    def n_texts(self) -> tuple[int, int]:
        """The rows that were read, and those that are used."""
        return self.total, self.used

    def count_problem(self, problem: str, location: str) -> None:
        """Count a row of a kind, "kind" or "kind: reason", and keep the locations of the first ones."""
        kind, _, reason = problem.partition(": ")
        setattr(self, kind, getattr(self, kind) + 1)
        locations = self.examples.setdefault(kind, [])
        if len(locations) < _MAX_EXAMPLES:
            locations.append(f"{location}, {reason}" if reason else location)

    def check_usable(self, details: str = "") -> None:
        """Raise a UserError if nothing is usable, or if most rows are malformed."""
        if not self.used:
            raise UserError(f"no usable {self.unit} in {self}{details}")
        if 2 * self.malformed > self.total:
            raise UserError(f"most lines are invalid: {self}")

    def describe(self, tr: Translate = tr) -> str:
        """One line in the current language.

        Example: 'train.tsv: 5,450 of 5,452 texts; skipped 2 blank (first: line 17); cut 1 (first: line 8)'.
        """
        if self.parts:
            return super().describe(tr)

        def translate_place(match: re.Match[str]) -> str:
            reason = match[2] if tr is format_english else translate_message(match[2] or "")
            return tr("line {line}", line=match[1]) + (tr(", ") + reason if reason else "")

        def first(kind: str) -> str:
            return _LINE.sub(translate_place, self.examples[kind][0], count=1)

        text = tr(self.counts, where=self.source_label, kept=self.used, read=self.total, answers=self.answers)
        skipped = [
            tr("{count:,} {kind} (first: {place})", count=count, kind=tr(words), place=first(kind))
            for kind, words in _KIND_WORDS.items()
            if (count := getattr(self, kind))
        ]
        if skipped:
            text += tr("; skipped {kinds}", kinds=tr(", ").join(skipped))
        text += self.describe_filtered(tr)
        if self.bom:
            text += tr(
                "; removed {count:,} byte order marks inside the file (first: {place})",
                count=self.bom,
                place=first("bom"),
            )
        if self.truncated:
            text += tr(
                "; truncated {count:,} (first: {place})", count=self.truncated, place=first("truncated")
            )
        return text


def join_names(files: Sequence[Path], empty_files: Sequence[Path] = ()) -> str:
    """The names of files, joined for messages."""
    empty = [tr("{file} (empty)", file=path.name) for path in empty_files]
    return " + ".join([*(path.name for path in files), *empty])


def read_limited(rows: Iterable[T], report: ReadReport, limit: int | None) -> list[T]:
    """The first rows, with their numbers in the report; for sets that fit into memory, such as validation."""
    result = []
    for row in islice(rows, None if limit is None else min(limit, MAX_INT)):
        result.append(row)
        report.row_numbers.append(report.total)
    return result


@dataclass(frozen=True)
class Rows(Generic[_Row]):
    """Files, their format, and the column of each role.

    A ``validation_fraction`` of the rows is held out: a hash of the text that decides the split of a row, so
    equal texts are in the same split, and it does not depend on the order: files are often sorted.
    """

    report_type: ClassVar[type[ReadReport]]

    files: tuple[Path, ...]
    format: Literal["parallel", "tsv", "jsonl", "conll", "squad"] = "jsonl"
    columns_by_role: ColumnsByRole = field(default_factory=dict)
    validation_fraction: float = 0.0
    is_validation: bool = False  # whether these are the held-out rows, or the others
    empty_files: tuple[Path, ...] = ()

    @property
    def source_label(self) -> str:
        return join_names(self.files, self.empty_files)

    def check_columns(self) -> None:
        """Raise a UserError if a file lacks one of the columns."""
        for path in self.files:
            check_columns(path, self.format, self.columns_by_role)

    def read_file(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield (line number from 1, row or the kind of problem) of a file."""
        return read_rows(path, self.format, self.columns_by_role)

    def number_rows(self) -> Iterator[tuple[str, int, _Row | str]]:
        """Yield (location, line number, row) of all files; with several files, locations include the name."""
        for path in self.files:
            name = f"{path.name} " if len(self.files) > 1 else ""
            for line, row in self.read_file(path):
                problem = "" if isinstance(row, str) else find_non_string(row, self.columns_by_role)
                yield f"{name}line {line:,}", line, problem or row

    def get_split_text(self, row: Any) -> str | None:
        """The text that decides the split of a usable row; None if it has none."""
        text = row[0]
        return text if isinstance(text, str) and not is_blank(text) else None

    def read(self, report: ReadReport | None = None) -> Iterator[tuple[str, _Row]]:
        """Yield (location, row) of the usable rows; the caller counts those that it uses."""
        for place, _, row in self.read_rows(report or self.report_type(self.source_label)):
            yield place, row

    def read_rows(self, report: ReadReport) -> Iterator[tuple[str, int, _Row]]:
        """Yield (location, line number, row) of the usable rows of this split; others are counted."""
        for place, line, row in self._iter_split():
            report.total += row != "bom"
            if isinstance(row, str):
                report.count_problem(row, place)
            else:
                yield place, line, row

    def _iter_split(self) -> Iterator[tuple[str, int, _Row | str]]:
        """Yield the rows of this split; rows without a text belong to training.

        A ``validation_fraction`` that selects no row, or all of them, is a UserError.
        """
        fraction = self.validation_fraction
        if not fraction:
            yield from self.number_rows()
            return
        n_selected = n_other = 0
        lowest, highest = 1.0, 0.0
        for item in self.number_rows():
            row = item[2]
            text = None if isinstance(row, str) else self.get_split_text(row)
            if text is None:
                if not self.is_validation:
                    yield item
                continue
            position = zlib.crc32(" ".join(text.split()).encode()) / 2**32  # from 0 to 1, up to whitespace
            lowest, highest = min(lowest, position), max(highest, position)
            if self.is_validation == (position < fraction):
                n_selected += 1
                yield item
            else:
                n_other += 1
        if n_other and not n_selected:
            word, bound = ("none", lowest) if self.is_validation else ("all", highest)
            hint = _describe_bound(bound, self.is_validation) if lowest < highest else ""
            raise UserError(
                f"data.valid_fraction is {fraction:g}: this selects {word} of the {n_other:,} "
                f"{self.report_type.unit}{'s' * (n_other > 1)} in {self.source_label}; {hint}set data.valid"
            )


def iter_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items; the last one may be shorter."""
    stream = iter(items)
    while chunk := list(islice(stream, min(size, MAX_INT))):
        yield chunk


def _describe_bound(bound: float, is_validation: bool) -> str:
    """The nearest fraction with two digits that selects an item, but not all: 'set at least 0.012, or '."""
    scale = 10.0 ** (1 - math.floor(math.log10(max(bound, 2**-32))))
    if is_validation:
        return f"set at least {(math.floor(bound * scale) + 1) / scale:g}, or "
    return f"set at most {math.floor(bound * scale) / scale:g}, or "
