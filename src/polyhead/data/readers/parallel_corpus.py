"""Read sentence pairs from parallel files, TSV or JSONL.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.data.readers.files import BOM, check_files, is_table, is_text, iter_lines
from polyhead.data.readers.rows import ReadReport, Rows, read_limited
from polyhead.data.readers.tabular import ColumnKey, infer_format, is_blank_line
from polyhead.data.readers.text_filter import NO_RULES, TextFilter, TextRules

CorpusFormat = Literal["auto", "parallel", "tsv", "jsonl"]
_N_COMPARED_LINES, _MIN_COMPARED_LINES = 1000, 10  # a few names or numbers are the same in two languages
PairRow = tuple[str, str] | str  # a pair, or the kind of line: "malformed", "too_long", "header", "bom"


class SentencePair(NamedTuple):
    """One sentence, its translation, and their line number (from 1)."""

    line: int
    source: str
    target: str
    location: str  # line number; with several files also the name


class CorpusReport(ReadReport):
    """Read counts of a parallel corpus."""

    unit = "pair"
    counts = "{where}: {kept:,} of {read:,} pairs"


@dataclass(frozen=True)
class ParallelFiles(Rows[Any]):
    """Files of a parallel corpus, or several corpora.

    All translations of a source are in the same split: a corpus often repeats a sentence with another
    translation, and validation must not contain training sentences.
    """

    report_type: ClassVar[type[ReadReport]] = CorpusReport

    name: str = ""  # of one of several corpora
    rules: TextRules = NO_RULES
    source_tags: tuple[str, ...] = ()  # special tokens at the start of each source
    corpora: tuple[ParallelFiles, ...] = ()  # read one after the other, instead of the files
    references: tuple[ParallelFiles, ...] = ()  # the same sources, with one further reference each

    @property
    def parts(self) -> tuple[ParallelFiles, ...]:
        """The corpora; a single one has itself."""
        return self.corpora or (self,)

    @property
    def source_label(self) -> str:
        return " + ".join(part.name for part in self.parts) or super().source_label

    @property
    def copied_side(self) -> str:
        """The file or column that is both source and target, also as a copy of itself; "" if none is."""
        if self.corpora:
            return next(filter(None, (corpus.copied_side for corpus in self.corpora)), "")
        if self.format != "parallel":
            columns = [self.columns_by_role[role] for role in ("source", "target")]
            return f"column {columns[0]!r}" if columns[0] == columns[1] else ""
        pairs = zip(self.files[::2], self.files[1::2], strict=True)
        source, target = next((pair for pair in pairs if _is_copy(*pair)), (Path(), Path()))
        return source.name if source.name == target.name else f"{source.name} (the text of {target.name})"

    def iter_pairs(self, report: CorpusReport | None = None) -> Iterator[SentencePair]:
        """Yield the usable pairs; the others are counted in the report. A UserError if none is usable."""
        if self.corpora:
            for corpus in self.corpora:
                yield from corpus.iter_pairs(report)
            return
        report = report or CorpusReport(self.source_label)
        text_filter = TextFilter(self.rules, report.n_filtered)
        for place, line, (source, target) in self.read_rows(report):
            if is_blank(source) or is_blank(target):
                report.count_problem("empty", place)
            elif text_filter.accepts(source, target):
                report.used += 1
                yield SentencePair(line, source, target, place)
                if text_filter.is_full:
                    return
        report.check_usable()

    def number_rows(self) -> Iterator[tuple[str, int, PairRow]]:
        if self.format != "parallel":
            yield from super().number_rows()
            return
        for source, target in zip(self.files[::2], self.files[1::2], strict=True):
            name = f"{source.name} " if len(self.files) > 2 else ""
            for line, row in _read_parallel(source, target):
                yield f"{name}line {line:,}", line, row


def merge_corpora(corpora: Sequence[ParallelFiles]) -> ParallelFiles:
    """Several corpora as one."""
    files = tuple(path for corpus in corpora for path in corpus.files)
    return replace(corpora[0], files=files, name="", rules=NO_RULES, source_tags=(), corpora=tuple(corpora))


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
    all_paths = [Path(root) / file for file in files]
    paths, empty = check_files(all_paths)
    resolved_format = _resolve_format(all_paths, format)
    if resolved_format == "parallel":
        pairs = pair_files(all_paths)
        for path, other in [*pairs, *((target, source) for source, target in pairs)]:
            if path in empty and other not in empty:
                raise UserError(f"{path} is empty")
        paths = tuple(path for pair in pairs for path in pair if path not in empty)
    columns_by_role = {"source": source, "target": target}
    corpus = ParallelFiles(paths, resolved_format, columns_by_role, validation_fraction, is_validation, empty)
    if resolved_format != "parallel":
        corpus.check_columns()
    return corpus


def open_references(files: Sequence[str | Path]) -> ParallelFiles:
    """Open a source and its references, one per file; the first reference is the target."""
    first, *others = [open_corpus([files[0], reference], format="parallel") for reference in files[1:]]
    return replace(first, references=tuple(others))


def has_references(paths: Sequence[Path], format: CorpusFormat) -> bool:
    """Whether files are a source and its references: three or more, the first with a suffix of its own."""
    first, *suffixes = [Path(path.name.removesuffix(".gz")).suffix for path in paths]
    is_parallel = format == "parallel" or (format == "auto" and infer_format(paths) is None)
    return len(suffixes) > 1 and first not in suffixes and is_parallel


def pair_files(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """(source, target) of parallel files; the names of several pairs differ only in the mark of the language.

    The sources are the files with the suffix of the first one if there are two suffixes, else the first half.
    """
    if len(paths) == 2:
        return [(paths[0], paths[1])]
    names = {path: path.as_posix().removesuffix(".gz") for path in paths}
    suffixes = {path: Path(name).suffix for path, name in names.items()}
    if len(set(suffixes.values())) == 2:
        sides = [[p for p in paths if (suffixes[p] == suffixes[paths[0]]) is side] for side in (True, False)]
        names = {path: name.removesuffix(suffixes[path]) for path, name in names.items()}
    elif len(paths) % 2:
        raise UserError(
            f"format 'parallel' expects a source and a target file, got {len(paths)}: "
            f"{', '.join(path.name for path in paths)}"
        )
    else:
        sides = [list(paths[: len(paths) // 2]), list(paths[len(paths) // 2 :])]
    words = {path: re.split(r"[./_-]", name) for path, name in names.items()}
    marks = [set.intersection(*(set(words[p]) for p in side)) if len(side) > 1 else set() for side in sides]
    sources, targets = (
        {tuple(word for word in words[path] if word not in own - other): path for path in side}
        for side, own, other in zip(sides, marks, reversed(marks), strict=True)
    )
    if unpaired := sources.keys() ^ targets.keys():
        raise UserError(
            f"parallel files: {(sources | targets)[min(unpaired)]} has no counterpart: expected a target "
            "file for each source file, with the same name except for the language"
        )
    return [(path, targets[name]) for name, path in sources.items()]


def read_pairs(corpus: ParallelFiles, limit: int | None = None) -> tuple[list[str], list[str], CorpusReport]:
    """(sources, targets, report)."""
    report = CorpusReport(corpus.source_label)
    pairs = read_limited(corpus.iter_pairs(report), report, limit)
    return [pair.source for pair in pairs], [pair.target for pair in pairs], report


def read_references(
    corpus: ParallelFiles, limit: int | None = None
) -> tuple[list[str], list[list[str]], CorpusReport]:
    """(sources, references of each, report)."""
    return merge_references([read_pairs(one, limit) for one in (corpus, *corpus.references)], limit)


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
    for pair in corpus.iter_pairs():
        yield pair.source
        yield pair.target


def _resolve_format(paths: Sequence[Path], format: CorpusFormat) -> Literal["parallel", "tsv", "jsonl"]:
    if format != "auto":
        if format not in ("parallel", "tsv", "jsonl"):
            raise unknown_name_error("format", format, ("auto", "parallel", "tsv", "jsonl"))
        if format == "parallel" and (table := next(filter(is_table, paths), None)):
            raise UserError(f"{table.name} is a table, but parallel files are plain text: remove data.format")
        return format
    if (inferred := infer_format(paths)) is not None:
        return inferred
    if len(paths) > 1:
        return "parallel"
    raise UserError(
        f"cannot detect the format of {paths[0].name}: name two parallel files, or one .tsv, .csv "
        "or .jsonl, or set data.format in the recipe"
    )


def _is_copy(source: Path, target: Path) -> bool:
    """Whether the first lines of two files are the same, packed or not."""
    if source.samefile(target):
        return True
    lines = zip(iter_lines(source), iter_lines(target), strict=False)
    pairs = list(itertools.islice(lines, _N_COMPARED_LINES))
    return len(pairs) >= _MIN_COMPARED_LINES and all(a == b for a, b in pairs)


def _read_parallel(source: Path, target: Path) -> Iterator[tuple[int, PairRow]]:
    """Yield (line number from 1, row); a blank line at the end of only one file is ignored."""
    source_lines, target_lines = (iter_lines(path, keep_bom=True) for path in (source, target))
    lines = itertools.zip_longest(source_lines, target_lines, fillvalue=_END)
    for count, (a, b) in enumerate(lines):  # lines read before
        if a is _END or b is _END:
            break
        if any(isinstance(line, bytes) and line.startswith(BOM) for line in (a, b)):
            yield count + 1, "bom"
        yield count + 1, _decode_row(a, b)
    else:
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


_END: Any = object()  # after the last line


def _decode_row(a: Any, b: Any) -> PairRow:
    if a is None or b is None:
        return "too_long"
    if not (is_text(a) and is_text(b)):
        return "malformed"
    return a.removeprefix(BOM).decode(), b.removeprefix(BOM).decode()
