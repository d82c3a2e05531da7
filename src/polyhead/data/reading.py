"""What the readers of lines have in common: where a line stands, which are held out, and what is counted and not used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from polyhead.core.i18n import Translate
from polyhead.errors import MOST, UserError

T = TypeVar("T")
EXAMPLES = 5  # places kept of each kind of what is left out
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"


class Report(Protocol):
    """Counts by kind, and the places of the first ones."""

    read: int
    kept: int
    broken: int
    examples: dict[str, list[str]]


def count(report: Report, kind: str, place: str) -> None:
    """Count one of a kind, and remember where the first ones stand."""
    setattr(report, kind, getattr(report, kind) + 1)
    seen = report.examples.setdefault(kind, [])
    if len(seen) < EXAMPLES:
        seen.append(place)


def skipped(report: Report, tr: Translate, *kinds: str, **called: str) -> str:
    """What was left out, of kinds that are called so or otherwise: '; skipped 3 blank (first: line 17)'."""
    found = [
        tr(
            "{count:,} {kind} (first: {place})",
            count=getattr(report, kind),
            kind=tr(name),
            place=describe_place(report.examples[kind][0], tr),
        )
        for kind, name in (dict(zip(kinds, kinds, strict=True)) | called).items()
        if getattr(report, kind)
    ]
    return tr("; skipped {kinds}", kinds=tr(", ").join(found)) if found else ""


def describe_cut(report: Report, cut: int, tr: Translate) -> str:
    """How many texts were cut: '; cut 1 (first: line 8)'."""
    if not cut:
        return ""
    return tr(
        "; cut {count:,} (first: {place})", count=cut, place=describe_place(report.examples["cut"][0], tr)
    )


def describe_place(place: str, tr: Translate) -> str:
    """A place as it was counted, 'a.tsv line 17', in a language."""
    return re.sub(r"\bline ([\d,]+)", lambda found: tr("line {line}", line=found[1]), place, count=1)


def check_usable(report: Report, what: str, more: str = "") -> None:
    """A text of which nothing is kept, or of which most lines are broken, is a UserError."""
    if not report.kept:
        raise UserError(f"no usable {what} in {report}{more}")
    if 2 * report.broken > report.read:
        raise UserError(f"most lines are broken: {report}")


def names(files: Sequence[Path]) -> str:
    """Files that are read one after another, or side by side, as people are told of them."""
    return " + ".join(path.name for path in files)


def blank(text: str) -> bool:
    """Whether nothing of a text can be seen."""
    return not text.strip() or not text.strip().strip(INVISIBLE)


def placed(
    files: Sequence[Path], read: Callable[[Path], Iterable[tuple[int, T]]]
) -> Iterator[tuple[str, int, T]]:
    """Everything that is read, with its line and how people are told of that: of several files also which."""
    for path in files:
        name = f"{path.name} " if len(files) > 1 else ""
        for line, found in read(path):
            yield f"{name}line {line:,}", line, found


def of_share(found: Iterable[T], share: float, held: bool, what: str, where: str) -> Iterator[T]:
    """Those that a ``share`` holds out, or the others: spread evenly, because files are often sorted.

    A share that is none of them, or all, is a UserError.
    """
    number = kept = 0
    for number, one in enumerate(found, 1):
        out = math.floor(number * share) > math.floor((number - 1) * share)
        if not share or held == out:
            kept += 1
            yield one
    if share and number and not kept:
        raise UserError(
            f"data.valid_share is {share:g}: of the {number:,} {what}{'s' * (number > 1)} in {where} that is none; "
            + (f"{_least(number):g} or more would hold out one, or " if number > 1 else "")
            + "name files in data.valid"
        )


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items, the last one shorter."""
    stream = iter(items)
    while chunk := list(islice(stream, min(size, MOST))):
        yield chunk


def _least(number: int) -> float:
    """A short number that is one of so many, or a little more: 0.34 of 3."""
    digits = len(str(number)) + 1
    return math.ceil(10**digits / number) / 10**digits
