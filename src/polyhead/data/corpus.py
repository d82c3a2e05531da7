"""Pairs of sentences from parallel files, TSV or JSONL; what cannot be used is counted, never dropped in silence."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.columns import Column, check_columns, kind_of, rows
from polyhead.data.files import check_file, is_table, is_text, lines
from polyhead.data.reading import blank, check_usable, count, names, placed, skipped
from polyhead.errors import MOST, UserError, unknown

Format = Literal["auto", "parallel", "tsv", "jsonl"]


class Pair(NamedTuple):
    """One sentence and its translation, and the line (from 1) they stand on."""

    line: int
    source: str
    target: str
    place: str  # the line, and of several files which


@dataclass
class CorpusReport:
    """What became of the pairs of a corpus: read = kept + blank + overlong + broken."""

    where: str
    read: int = 0
    kept: int = 0
    blank: int = 0
    overlong: int = 0
    broken: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)
    # from 1, of what was read: those of the pairs that are held
    rows: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """One line in English: 'train.en + train.de: 29,000 of 29,003 pairs; skipped 3 blank (first: line 17)'."""
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        left_out = skipped(self, tr, "blank", "overlong", "broken")
        counts = tr("{where}: {kept:,} of {read:,} pairs", where=self.where, kept=self.kept, read=self.read)
        return counts + left_out


@dataclass(frozen=True)
class Corpus:
    """Where pairs come from: the files, how to read them, and which column or key is which side.

    A ``share`` of the pairs is held out. The source decides whether, so all translations of one are on the same side: a
    corpus often has a sentence again with another translation, and what was learned is no measure.
    """

    files: tuple[Path, ...]
    format: Literal["parallel", "tsv", "jsonl"]
    source: Column = 0
    target: Column = 1
    share: float = 0.0
    held: bool = False  # whether these are the pairs that were held out, or the others

    @property
    def where(self) -> str:
        return names(self.files)

    @property
    def wanted(self) -> dict[str, Column]:
        """The columns by what they are for."""
        return {"source": self.source, "target": self.target}

    @property
    def copies(self) -> bool:
        """Whether every target is its source: one file on both sides, or one column."""
        if self.format == "parallel":
            return self.files[0].samefile(self.files[1])
        return self.source == self.target

    def pairs(self, report: CorpusReport) -> Iterator[Pair]:
        """The usable pairs one by one; the rest is counted in the report. An error if none is left."""
        others = 0
        for place, line, row in _rows(self):
            if self.share and self.held != _held(row, self.share):
                others += 1
                continue
            report.read += 1
            kind = row if isinstance(row, str) else "blank" if blank(row[0]) or blank(row[1]) else ""
            if kind:
                count(report, kind, place)
            else:
                report.kept += 1
                yield Pair(line, row[0], row[1], place)
        if self.share and not report.read:
            raise UserError(
                f"data.valid_share is {self.share:g}: of the {others:,} pairs in {self.where} that is "
                f"{'none' if self.held else 'all'}; give another one, or name files in data.valid"
            )
        check_usable(report, "pair")


def open_corpus(
    files: Sequence[str | Path],
    *,
    root: str | Path = ".",
    format: Format = "auto",
    source: Column = 0,
    target: Column = 1,
    share: float = 0.0,
    held: bool = False,
) -> Corpus:
    """Find the files and tell their format; every mistake in the names is found here, before any work."""
    if not files:
        raise UserError("no files: name a source and a target file, or one TSV or JSONL file")
    paths = tuple(check_file(Path(root) / file) for file in files)
    chosen = _format(paths, format)
    if chosen == "parallel" and len(paths) != 2:
        raise UserError(
            f"format 'parallel' wants a source and a target file, got {len(paths)}: "
            f"{', '.join(path.name for path in paths)}"
        )
    corpus = Corpus(paths, chosen, source, target, share, held)
    if chosen != "parallel":
        for path in paths:
            check_columns(path, chosen, corpus.wanted)
    return corpus


def read_pairs(corpus: Corpus, limit: int | None = None) -> tuple[list[str], list[str], CorpusReport]:
    """Sources, targets and what was skipped; for sets small enough to hold, such as validation and test."""
    report = CorpusReport(corpus.where)
    pairs = []
    for pair in islice(corpus.pairs(report), None if limit is None else min(limit, MOST)):
        pairs.append(pair)
        report.rows.append(report.read)
    return [pair.source for pair in pairs], [pair.target for pair in pairs], report


def texts(corpus: Corpus) -> Iterator[str]:
    """Both sides of every pair, as a joint tokenizer learns from them."""
    for pair in corpus.pairs(CorpusReport(corpus.where)):
        yield pair.source
        yield pair.target


Row = tuple[str, str] | str  # a pair, or the kind of trouble: "broken", "overlong"


def _format(paths: tuple[Path, ...], format: Format) -> Literal["parallel", "tsv", "jsonl"]:
    if format != "auto":
        if format not in ("parallel", "tsv", "jsonl"):
            raise unknown("format", format, ("auto", "parallel", "tsv", "jsonl"))
        if format == "parallel" and (table := next(filter(is_table, paths), None)):
            raise UserError(
                f"{table.name} is a table, and parallel files are plain text: leave data.format out"
            )
        return format
    if (known := kind_of(paths)) is not None:
        return known
    if len(paths) == 2:
        return "parallel"
    raise UserError(
        f"cannot tell the format of {paths[0].name}: name two parallel files, or one .tsv, .csv or .jsonl, or set data.format"
    )


def _rows(corpus: Corpus) -> Iterator[tuple[str, int, Row]]:
    """Every row with its place and its line."""
    if corpus.format == "parallel":
        yield from ((f"line {line:,}", line, row) for line, row in enumerate(_parallel(*corpus.files), 1))
        return
    read = partial(rows, format=corpus.format, wanted=corpus.wanted)
    for place, line, row in placed(corpus.files, read):
        yield place, line, row if isinstance(row, str) else _texts(*row)


def _held(row: Row, share: float) -> bool:
    """Whether a pair is of those that a share holds out; what is no pair, or has no source, is of the others."""
    return not isinstance(row, str) and not blank(row[0]) and zlib.crc32(row[0].encode()) < share * 2**32


def _texts(a: Any, b: Any) -> Row:
    """What is no text in a JSON is of no use here."""
    return (a, b) if isinstance(a, str) and isinstance(b, str) else "broken"


def _parallel(source: Path, target: Path) -> Iterator[Row]:
    left, right, count = lines(source), lines(target), 0
    while True:
        a, b = next(left, END), next(right, END)
        if a is END or b is END:
            break
        count += 1
        yield _row(a, b)
    if a is END and b is END:
        return
    longer, more, first = (source, left, a) if b is END else (target, right, b)
    total = count + 1 + sum(1 for _ in more)
    sizes = {source: count, target: count, longer: total}
    shown = first.decode(errors="replace")[:60] if isinstance(first, bytes) else "..."
    raise UserError(
        f"{source.name} has {sizes[source]:,} lines and {target.name} has {sizes[target]:,}: "
        f"from line {count + 1:,} on there is only {longer.name} ({shown!r})"
    )


class _End:
    """After the last line."""


END = _End()


def _row(a: Any, b: Any) -> Row:
    if a is None or b is None:
        return "overlong"
    if not (is_text(a) and is_text(b)):
        return "broken"
    return a.decode(), b.decode()
