"""Common code of the line readers: locations of lines, held-out lines, and counts of skipped lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from polyhead.core.errors import MAX_INT, UserError
from polyhead.core.i18n import Translate

T = TypeVar("T")
_MAX_EXAMPLES = 5  # locations kept for each kind of problem
# how messages call the counters of a report
_KIND_WORDS = {
    "empty": "blank",
    "too_long": "overlong",
    "malformed": "broken",
    "unsupported": "unfit",
    "unknown_label": "of an unknown label",
}
_INVISIBLE_CHARS = "\u200b\u200c\u200d\u2060\ufeff"


class ReadReport(Protocol):
    """Counts by kind, and the locations of the first lines of each kind."""

    total: int
    used: int
    malformed: int
    examples: dict[str, list[str]]


def count_problem(report: ReadReport, kind: str, location: str) -> None:
    """Count a line of a kind, and keep the locations of the first ones."""
    setattr(report, kind, getattr(report, kind) + 1)
    locations = report.examples.setdefault(kind, [])
    if len(locations) < _MAX_EXAMPLES:
        locations.append(location)


def describe_skipped(report: ReadReport, tr: Translate, *kinds: str) -> str:
    """Counts of the skipped lines by kind: '; skipped 3 blank (first: line 17)'."""
    counts = [
        tr(
            "{count:,} {kind} (first: {place})",
            count=getattr(report, kind),
            kind=tr(_KIND_WORDS[kind]),
            place=describe_location(report.examples[kind][0], tr),
        )
        for kind in kinds
        if getattr(report, kind)
    ]
    return tr("; skipped {kinds}", kinds=tr(", ").join(counts)) if counts else ""


def describe_truncated(report: ReadReport, n_truncated: int, tr: Translate) -> str:
    """How many texts were cut: '; cut 1 (first: line 8)'."""
    if not n_truncated:
        return ""
    return tr(
        "; cut {count:,} (first: {place})",
        count=n_truncated,
        place=describe_location(report.examples["truncated"][0], tr),
    )


def describe_location(location: str, tr: Translate) -> str:
    """Translate a location such as 'a.tsv line 17'."""
    return re.sub(r"\bline ([\d,]+)", lambda match: tr("line {line}", line=match[1]), location, count=1)


def check_usable(report: ReadReport, unit: str, details: str = "") -> None:
    """Raise a UserError if nothing is usable, or if most lines are malformed."""
    if not report.used:
        raise UserError(f"no usable {unit} in {report}{details}")
    if 2 * report.malformed > report.total:
        raise UserError(f"most lines are broken: {report}")


def join_names(files: Sequence[Path]) -> str:
    """The names of files, joined for messages."""
    return " + ".join(path.name for path in files)


def is_blank(text: str) -> bool:
    """Whether a text has no visible characters."""
    return not text.strip() or not text.strip().strip(_INVISIBLE_CHARS)


def number_lines(
    files: Sequence[Path], read_file: Callable[[Path], Iterable[tuple[int, T]]]
) -> Iterator[tuple[str, int, T]]:
    """Yield (location, line number, item) of all files; with several files, locations include the name."""
    for path in files:
        name = f"{path.name} " if len(files) > 1 else ""
        for line, item in read_file(path):
            yield f"{name}line {line:,}", line, item


def held_out_lines(
    items: Iterable[T], validation_fraction: float, is_validation: bool, unit: str, source_label: str
) -> Iterator[T]:
    """Yield the items of the validation split, or the others.

    The split is spread evenly, because files are often sorted. A ``validation_fraction`` that selects no
    item, or all of them, is a UserError.
    """
    number = n_selected = 0
    for number, item in enumerate(items, 1):
        is_held_out = math.floor(number * validation_fraction) > math.floor(
            (number - 1) * validation_fraction
        )
        if not validation_fraction or is_validation == is_held_out:
            n_selected += 1
            yield item
    if validation_fraction and number and not n_selected:
        raise UserError(
            f"data.valid_share is {validation_fraction:g}: of the {number:,} {unit}{'s' * (number > 1)} in {source_label} that is none; "
            + (f"{_min_fraction(number):g} or more would hold out one, or " if number > 1 else "")
            + "name files in data.valid"
        )


def iter_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items; the last one may be shorter."""
    stream = iter(items)
    while chunk := list(islice(stream, min(size, MAX_INT))):
        yield chunk


def _min_fraction(number: int) -> float:
    """A short number that selects at least one of ``number`` items: 0.34 for 3."""
    digits = len(str(number)) + 1
    return math.ceil(10**digits / number) / 10**digits
