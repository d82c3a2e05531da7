"""Read sentence pairs from parallel files, TSV or JSONL.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import MAX_INT, UserError, unknown_name_error
from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.readers.files import BOM, check_file, is_table, is_text, iter_lines
from polyhead.data.readers.reader_common import (
    check_usable,
    count_problem,
    describe_boms,
    describe_skipped,
    iter_split,
    join_names,
    number_lines,
)
from polyhead.data.readers.tabular import (
    ColumnKey,
    check_columns,
    infer_format,
    is_blank_line,
    read_rows,
)

CorpusFormat = Literal["auto", "parallel", "tsv", "jsonl"]


class SentencePair(NamedTuple):
    """One sentence, its translation, and their line number (from 1)."""

    line: int
    source: str
    target: str
    location: str  # line number; with several files also the name


@dataclass
class CorpusReport:
    """Read counts of a parallel corpus: total = used + empty + header + too_long + malformed.

    header is a line that repeats the header; ``bom`` counts byte order marks at the start of further lines.
    """

    source_label: str
    total: int = 0
    used: int = 0
    empty: int = 0
    header: int = 0
    too_long: int = 0
    malformed: int = 0
    bom: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)
    # row numbers, from 1, of the pairs that were returned
    row_numbers: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """One line in English.

        Example: 'train.en + train.de: 29,000 of 29,003 pairs; skipped 3 blank (first: line 17)'.
        """
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        left_out = describe_skipped(self, tr, "empty", "header", "too_long", "malformed")
        counts = tr(
            "{where}: {kept:,} of {read:,} pairs", where=self.source_label, kept=self.used, read=self.total
        )
        return counts + left_out + describe_boms(self, tr)


@dataclass(frozen=True)
class ParallelFiles:
    """Files of a parallel corpus, their format, and the column or key of each side.

    A ``validation_fraction`` of the pairs is held out. The split is a hash of the source, so all translations
    of a sentence are in the same split: a corpus often repeats a sentence with another translation, and
    validation must not contain training sentences.
    """

    files: tuple[Path, ...]
    format: Literal["parallel", "tsv", "jsonl"]
    source: ColumnKey = 0
    target: ColumnKey = 1
    validation_fraction: float = 0.0
    is_validation: bool = False  # whether these are the held-out pairs, or the others

    @property
    def source_label(self) -> str:
        return join_names(self.files)

    @property
    def columns_by_role(self) -> dict[str, ColumnKey]:
        """The columns by role."""
        return {"source": self.source, "target": self.target}

    @property
    def is_copy(self) -> bool:
        """Whether every target equals its source: one file on both sides, or one column."""
        if self.format == "parallel":
            return self.files[0].samefile(self.files[1])
        return self.source == self.target

    def iter_pairs(self, report: CorpusReport) -> Iterator[SentencePair]:
        """Yield the usable pairs; the others are counted in the report. A UserError if none is usable."""
        for place, line, row in iter_split(
            _read_rows(self),
            _get_source,
            self.validation_fraction,
            self.is_validation,
            "pair",
            self.source_label,
        ):
            if row == "bom":
                count_problem(report, row, place)
                continue
            report.total += 1
            kind = row if isinstance(row, str) else "empty" if is_blank(row[0]) or is_blank(row[1]) else ""
            if kind:
                count_problem(report, kind, place)
            else:
                report.used += 1
                yield SentencePair(line, row[0], row[1], place)
        check_usable(report, "pair")


def open_corpus(
    files: Sequence[str | Path],
    *,
    root: str | Path = ".",
    format: CorpusFormat = "auto",
    source: ColumnKey = 0,
    target: ColumnKey = 1,
    validation_fraction: float = 0.0,
    is_validation: bool = False,
) -> ParallelFiles:
    """Open a parallel corpus: infer the format and check names and columns.

    Mistakes in the names raise a UserError here, before any work.
    """
    if not files:
        raise UserError("no files: expected a source and a target file, or one TSV or JSONL file")
    paths = tuple(check_file(Path(root) / file) for file in files)
    resolved_format = _resolve_format(paths, format)
    if resolved_format == "parallel" and len(paths) != 2:
        raise UserError(
            f"format 'parallel' expects a source and a target file, got {len(paths)}: "
            f"{', '.join(path.name for path in paths)}"
        )
    corpus = ParallelFiles(paths, resolved_format, source, target, validation_fraction, is_validation)
    if resolved_format != "parallel":
        for path in paths:
            check_columns(path, resolved_format, corpus.columns_by_role)
    return corpus


def read_pairs(corpus: ParallelFiles, limit: int | None = None) -> tuple[list[str], list[str], CorpusReport]:
    """(sources, targets, report); for sets that fit into memory, such as validation and test."""
    report = CorpusReport(corpus.source_label)
    pairs = []
    for pair in islice(corpus.iter_pairs(report), None if limit is None else min(limit, MAX_INT)):
        pairs.append(pair)
        report.row_numbers.append(report.total)
    return [pair.source for pair in pairs], [pair.target for pair in pairs], report


PairSet = tuple[list[str], list[str], CorpusReport]
"""The result of ``read_pairs``."""


def merge_references(
    pair_sets: Sequence[PairSet], limit: int | None = None
) -> tuple[list[str], list[list[str]], CorpusReport]:
    """(sources, references of each, report) of sets with the same sources and one reference each.

    A row is used if one of its references is usable, so the number of references may vary.
    """
    rows: dict[int, tuple[str, list[str]]] = {}
    for sources, targets, report in pair_sets:
        for number, source, target in zip(report.row_numbers, sources, targets, strict=True):
            rows.setdefault(number, (source, []))[1].append(target)
    numbers = sorted(rows)[:limit]
    reports = [report for _, _, report in pair_sets]
    total = numbers[-1] if len(numbers) == limit else max(report.total for report in reports)
    merged = CorpusReport(reports[0].source_label, total, len(numbers), row_numbers=numbers)
    return [rows[number][0] for number in numbers], [rows[number][1] for number in numbers], merged


def read_corpus_texts(corpus: ParallelFiles) -> Iterator[str]:
    """Yield both sides of every pair, for training a joint tokenizer."""
    for pair in corpus.iter_pairs(CorpusReport(corpus.source_label)):
        yield pair.source
        yield pair.target


PairRow = tuple[str, str] | str  # a pair, or the kind of line: "malformed", "too_long", "header", "bom"


def _resolve_format(paths: tuple[Path, ...], format: CorpusFormat) -> Literal["parallel", "tsv", "jsonl"]:
    if format != "auto":
        if format not in ("parallel", "tsv", "jsonl"):
            raise unknown_name_error("format", format, ("auto", "parallel", "tsv", "jsonl"))
        if format == "parallel" and (table := next(filter(is_table, paths), None)):
            raise UserError(f"{table.name} is a table, but parallel files are plain text: remove data.format")
        return format
    if (inferred := infer_format(paths)) is not None:
        return inferred
    if len(paths) == 2:
        return "parallel"
    raise UserError(
        f"cannot detect the format of {paths[0].name}: name two parallel files, or one .tsv, .csv "
        "or .jsonl, or set data.format"
    )


def _read_rows(corpus: ParallelFiles) -> Iterator[tuple[str, int, PairRow]]:
    """Yield (location, line number, row) of every row."""
    if corpus.format == "parallel":
        yield from ((f"line {line:,}", line, row) for line, row in _read_parallel(*corpus.files))
        return
    read_file = partial(read_rows, format=corpus.format, columns_by_role=corpus.columns_by_role)
    for place, line, row in number_lines(corpus.files, read_file):
        yield place, line, row if isinstance(row, str) else _check_texts(*row)


def _get_source(row: tuple[str, int, PairRow]) -> str | None:
    """The source of a pair, which decides its split; None if it has none."""
    return None if isinstance(row[2], str) or is_blank(row[2][0]) else row[2][0]


def _check_texts(a: Any, b: Any) -> PairRow:
    """The pair, or "malformed" if a JSON value is not a string."""
    return (a, b) if isinstance(a, str) and isinstance(b, str) else "malformed"


def _read_parallel(source: Path, target: Path) -> Iterator[tuple[int, PairRow]]:
    """Yield (line number from 1, row); a blank line at the end of only one file is ignored."""
    source_lines, target_lines = (iter_lines(path, keep_bom=True) for path in (source, target))
    for count in itertools.count():  # lines read
        a, b = next(source_lines, _END), next(target_lines, _END)
        if a is _END or b is _END:
            break
        if any(isinstance(line, bytes) and line.startswith(BOM) for line in (a, b)):
            yield count + 1, "bom"
        yield count + 1, _decode_row(a, b)
    if a is _END and b is _END:
        return
    longer, more, first = (source, source_lines, a) if b is _END else (target, target_lines, b)
    total = count + 1 + sum(1 for _ in more)
    if total == count + 1 and isinstance(first, bytes) and is_blank_line(first):
        return
    sizes = {source: count, target: count, longer: total}
    excerpt = first.decode(errors="replace")[:60] if isinstance(first, bytes) else "..."
    raise UserError(
        f"{source.name} has {sizes[source]:,} lines and {target.name} has {sizes[target]:,}: from line "
        f"{count + 1:,} on, only {longer.name} has lines ({excerpt!r})"
    )


class _End:
    """Marker after the last line."""


_END = _End()


def _decode_row(a: Any, b: Any) -> PairRow:
    if a is None or b is None:
        return "too_long"
    if not (is_text(a) and is_text(b)):
        return "malformed"
    return a.removeprefix(BOM).decode(), b.removeprefix(BOM).decode()
