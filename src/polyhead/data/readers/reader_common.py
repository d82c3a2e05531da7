"""Common code of the line readers: locations of lines, held-out lines, and counts of skipped lines."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from polyhead.core.errors import MAX_INT, UserError
from polyhead.core.i18n import Translate
from polyhead.data.readers.files import BOM, MAX_LINE, iter_lines

T = TypeVar("T")
_MAX_EXAMPLES = 5  # locations kept for each kind of problem
# how messages call the counters of a report
_KIND_WORDS = {
    "empty": "blank",
    "header": "equal to the header",
    "too_long": "overlong",
    "malformed": "broken",
    "unsupported": "unfit",
    "unknown_label": "with an unknown label",
}


class ReadReport(Protocol):
    """Counts by kind, and the locations of the first lines of each kind."""

    total: int
    used: int
    malformed: int
    bom: int
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


def describe_boms(report: ReadReport, tr: Translate) -> str:
    """How many byte order marks were removed: '; removed 1 byte order marks (first: line 8)'."""
    if not report.bom:
        return ""
    return tr(
        "; removed {count:,} byte order marks inside the file (first: {place})",
        count=report.bom,
        place=describe_location(report.examples["bom"][0], tr),
    )


def describe_truncated(report: ReadReport, n_truncated: int, tr: Translate) -> str:
    """How many texts were cut: '; cut 1 (first: line 8)'."""
    if not n_truncated:
        return ""
    return tr(
        "; truncated {count:,} (first: {place})",
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
        raise UserError(f"most lines are invalid: {report}")


def join_names(files: Sequence[Path]) -> str:
    """The names of files, joined for messages."""
    return " + ".join(path.name for path in files)


def parse_lines(
    path: Path, parse_line: Callable[[bytes | None], T], max_line: int = MAX_LINE
) -> Iterator[tuple[int, T | str]]:
    """Yield (line number from 1, parsed line) of a file.

    A line from which a byte order mark was removed comes after an item "bom" of the same number.
    """
    for number, line in enumerate(iter_lines(path, max_line, keep_bom=True), 1):
        if line is not None and line.startswith(BOM):
            yield number, "bom"
            line = line.removeprefix(BOM)
        yield number, parse_line(line)


def number_lines(
    files: Sequence[Path], read_file: Callable[[Path], Iterable[tuple[int, T]]]
) -> Iterator[tuple[str, int, T]]:
    """Yield (location, line number, item) of all files; with several files, locations include the name."""
    for path in files:
        name = f"{path.name} " if len(files) > 1 else ""
        for line, item in read_file(path):
            yield f"{name}line {line:,}", line, item


def iter_split(
    items: Iterable[T],
    get_text: Callable[[T], str | None],
    validation_fraction: float,
    is_validation: bool,
    unit: str,
    source_label: str,
) -> Iterator[T]:
    """Yield the items of the validation split, or the others.

    The split is a hash of the text of an item, so equal texts are in the same split, and it does not depend
    on the order: files are often sorted. Items without a text belong to training. A ``validation_fraction``
    that selects no item, or all of them, is a UserError.
    """
    if not validation_fraction:
        yield from items
        return
    n_selected = n_other = 0
    lowest, highest = 1.0, 0.0
    for item in items:
        text = get_text(item)
        if text is None:
            if not is_validation:
                yield item
            continue
        position = hash_text(text)
        lowest, highest = min(lowest, position), max(highest, position)
        if is_validation == (position < validation_fraction):
            n_selected += 1
            yield item
        else:
            n_other += 1
    if n_other and not n_selected:
        word, bound = ("none", lowest) if is_validation else ("all", highest)
        hint = _describe_bound(bound, is_validation) if lowest < highest else ""
        raise UserError(
            f"data.valid_fraction is {validation_fraction:g}: this selects {word} of the {n_other:,} "
            f"{unit}{'s' * (n_other > 1)} in {source_label}; {hint}set data.valid"
        )


def hash_text(text: str) -> float:
    """A number from 0 to 1 for a text, up to whitespace."""
    return zlib.crc32(" ".join(text.split()).encode()) / 2**32


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
