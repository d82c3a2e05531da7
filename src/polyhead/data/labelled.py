"""Labelled texts, single or in pairs, from TSV or JSONL; what cannot be used is counted, never dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.columns import Column, check_columns, kind_of, rows
from polyhead.data.files import check_file
from polyhead.data.reading import blank, check_usable, count, describe_cut, names, of_share, placed, skipped
from polyhead.errors import MOST, UserError, nearest, show

FEW = 20  # texts; of more than so many, not every second one may have a label of its own


class Example(NamedTuple):
    """One text, or two that belong together, and the class."""

    line: int
    texts: tuple[str, ...]
    label: str
    place: str  # the line, and of several files which


@dataclass
class LabelledReport:
    """What became of labelled texts: read = kept + blank + overlong + broken + unknown.

    Overlong is a line beyond all measure; a text with more tokens than fit is kept, cut, and counted as ``cut``.
    """

    where: str
    read: int = 0
    kept: int = 0
    blank: int = 0
    overlong: int = 0
    broken: int = 0
    unknown: int = 0
    cut: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)
    # from 1, of what was read: those of the texts that are held
    rows: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """One line in English: 'train.tsv: 5,450 of 5,452 texts; skipped 2 blank (first: line 17); cut 1 (first: line 8)'."""
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        left_out = skipped(self, tr, "blank", "overlong", "broken", unknown="of an unknown label")
        counts = tr("{where}: {kept:,} of {read:,} texts", where=self.where, kept=self.kept, read=self.read)
        return counts + left_out + describe_cut(self, self.cut, tr)


@dataclass(frozen=True)
class Labelled:
    """Where labelled texts come from: the files, their format, and which columns hold the texts and the label.

    A ``share`` of the lines, spread evenly, is held out: files are often sorted by label, so their end is no sample.
    """

    files: tuple[Path, ...]
    format: Literal["tsv", "jsonl"]
    text: tuple[Column, ...]
    label: Column
    share: float = 0.0  # of the lines, that are held out
    held: bool = False  # whether these are the lines that were held out, or the others

    @property
    def where(self) -> str:
        return names(self.files)

    @property
    def wanted(self) -> dict[str, Column]:
        """The columns by what they are for."""
        names = ["text"] if len(self.text) == 1 else [f"text[{i}]" for i in range(len(self.text))]
        return dict(zip(names, self.text, strict=True)) | {"label": self.label}

    def examples(self, report: LabelledReport, labels: Sequence[str] | None = None) -> Iterator[Example]:
        """The usable texts one by one, of the given labels if they are given; the rest is counted. An error if none is left."""
        known = None if labels is None else set(labels)
        every = placed(self.files, partial(rows, format=self.format, wanted=self.wanted))
        for place, line, row in of_share(every, self.share, self.held, "text", self.where):
            report.read += 1
            found = row if isinstance(row, str) else _example(line, row, place)
            if isinstance(found, str):
                count(report, found, place + _no_label(row))
            elif known is not None and found.label not in known:
                hint = nearest(found.label, known).removeprefix("; ")
                count(report, "unknown", f"{place}, {found.label!r}" + (f", {hint}" if hint else ""))
            else:
                report.kept += 1
                yield found
        among = f"; the labels are {', '.join(sorted(known)[:20])}" if known and report.unknown else ""
        check_usable(report, "text", among)


def open_labelled(
    files: Sequence[str | Path],
    *,
    root: str | Path = ".",
    format: str = "auto",
    text: Sequence[Column] = ("text",),
    label: Column = "label",
    share: float = 0.0,
    held: bool = False,
) -> Labelled:
    """Find the files, tell their format and look for the columns; every mistake in the names is found here."""
    if not files:
        raise UserError("no files: name one TSV or JSONL file or several")
    paths = tuple(check_file(Path(root) / file) for file in files)
    if format == "parallel":
        raise UserError("format 'parallel' has no labels: labelled texts are in tsv or jsonl")
    chosen = {"tsv": "tsv", "jsonl": "jsonl"}.get(format) or kind_of(paths)
    if chosen is None:
        raise UserError(
            f"cannot tell the format of {paths[0].name}: name it .tsv, .csv or .jsonl, or set data.format"
        )
    found = Labelled(paths, "tsv" if chosen == "tsv" else "jsonl", tuple(text), label, share, held)
    for path in paths:
        check_columns(path, found.format, found.wanted)
    return found


def labels_of(labelled: Labelled) -> tuple[str, ...]:
    """The different labels, sorted. An error if there is nothing to tell apart, or hardly anything alike."""
    report = LabelledReport(labelled.where)
    counted = {example.label for example in labelled.examples(report)}
    if len(counted) < 2:
        raise UserError(
            f"{labelled.where}: every text has the label {counted.pop()!r}; nothing to tell apart"
        )
    if report.kept > FEW and 2 * len(counted) > report.kept:
        raise UserError(
            f"{labelled.where}: {len(counted):,} different labels for {report.kept:,} texts, such as "
            f"{min(counted)[:40]!r}; is {labelled.label!r} the column of the label?"
        )
    return tuple(sorted(counted))


def texts(labelled: Labelled) -> Iterator[str]:
    """Every text, as a tokenizer learns from them."""
    for example in labelled.examples(LabelledReport(labelled.where)):
        yield from example.texts


def read_labelled(
    labelled: Labelled, labels: Sequence[str] | None = None, limit: int | None = None
) -> tuple[list[Example], LabelledReport]:
    """The usable texts and what was skipped; for sets small enough to hold, such as validation and test."""
    report, found = LabelledReport(labelled.where), []
    for example in islice(labelled.examples(report, labels), None if limit is None else min(limit, MOST)):
        found.append(example)
        report.rows.append(report.read)
    return found, report


def _example(line: int, row: tuple[Any, ...], place: str) -> Example | str:
    """The values of a line as texts and label, or the kind of trouble. A label may be a whole number or a truth value."""
    *given, label = row
    if not all(isinstance(text, str) for text in given) or not is_label(label):
        return "broken"
    if isinstance(label, float):
        label = int(label)
    if any(map(blank, given)):
        return "blank"
    named = str(label).lower() if isinstance(label, bool) else str(label).strip()
    return Example(line, tuple(given), named, place) if named else "broken"


def is_label(value: Any) -> bool:
    """Whether it names a class. To JSON 1.0 is 1, and columns of numbers with gaps come as such."""
    return value.is_integer() if isinstance(value, float) else isinstance(value, str | int)


def _no_label(row: Any) -> str:
    """What is wrong with the label of a row, if that is."""
    if isinstance(row, str) or is_label(row[-1]):
        return ""
    return f", label {show(row[-1])}, wanted text, a whole number, true or false"
