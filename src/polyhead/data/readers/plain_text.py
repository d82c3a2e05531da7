"""Read plain text, from files or from columns of tables, split into documents, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import Translate, tr
from polyhead.data.readers.files import BOM, check_files, is_text, iter_spans
from polyhead.data.readers.rows import PartsReport, join_names
from polyhead.data.readers.tabular import (
    ColumnKey,
    TableFormat,
    check_columns,
    infer_table_format,
    name_text_columns,
    read_rows,
)
from polyhead.data.readers.text_filter import NO_RULES, TextFilter, TextRules
from polyhead.tokenizers.train_tokenizer import MAX_TRAINING_CHARACTERS

DocumentSeparator = Literal["file", "line", "blank"]
_CHUNK_CHARS = 1 << 16  # characters per chunk
MAX_VALUE_BYTES = 1 << 24  # bytes of a line of a table; a value may be a complete book


class TextChunk(NamedTuple):
    """A part of a document, and whether the document ends with it."""

    text: str
    is_last: bool


@dataclass
class TextReport(PartsReport):
    """Read counts of a text, and the units of perplexity. Document separators count in none of them."""

    documents: int = 0
    lines: int = 0
    characters: int = 0
    words: int = 0  # separated by whitespace; a line end counts as one, as in the literature on WikiText
    malformed: int = 0
    header: int = 0  # rows of a table that repeat its header
    bom: int = 0  # byte order marks at the start of further lines

    @property
    def n_texts(self) -> tuple[int, int]:
        """The documents that were read, and those that are used."""
        return self.documents + sum(self.n_filtered.values()), self.documents

    def add(self, text: str) -> None:
        """Count more text: complete lines, except possibly the last."""
        ends = text.count("\n")
        self.lines += ends
        self.characters += len(text)
        self.words += len(text.split()) + ends

    def describe(self, tr: Translate = tr) -> str:
        """One line in the current language: 'input.txt: 1 document, 40,000 lines, 1,115,394 characters'."""
        if self.parts:
            return super().describe(tr)
        singular = "{where}: {documents:,} document, {lines:,} lines, {characters:,} characters"
        plural = "{where}: {documents:,} documents, {lines:,} lines, {characters:,} characters"
        counts = tr(
            singular if self.documents == 1 else plural,
            where=self.source_label,
            documents=self.documents,
            lines=self.lines,
            characters=self.characters,
        )
        counts += self.describe_filtered(tr)
        if self.malformed:
            counts += tr("; skipped {count:,} lines that are not text or too long", count=self.malformed)
        if self.header:
            counts += tr("; skipped {count:,} rows equal to the header", count=self.header)
        if self.bom:
            counts += tr("; removed {count:,} byte order marks inside the file", count=self.bom)
        return counts


@dataclass(frozen=True)
class TextFiles:
    """Files of text and their document separator.

    ``document_separator``: "file" (each file is a document), "line" (each line is a document, without its
    line end) or "blank" (blank lines separate documents and belong to none). ``fraction_range`` selects a
    part of the characters: (0.9, 1.0) is the last tenth. A file is cut at the exact character; a line or
    paragraph belongs completely to the part in which it starts. In a ``table``, TSV or JSONL, each value of
    the ``columns`` is a document, including its line breaks.
    """

    files: tuple[Path, ...]
    document_separator: DocumentSeparator = "file"
    fraction_range: tuple[float, float] = (0.0, 1.0)
    table: TableFormat | None = None
    columns: tuple[ColumnKey, ...] = ()
    empty_files: tuple[Path, ...] = ()

    name: str = ""  # of one of several corpora
    rules: TextRules = NO_RULES
    corpora: tuple[TextFiles, ...] = ()  # read one after the other, instead of the files

    @property
    def parts(self) -> tuple[TextFiles, ...]:
        """The corpora; a single one has itself."""
        return self.corpora or (self,)

    @property
    def source_label(self) -> str:
        return " + ".join(part.name for part in self.parts) or join_names(self.files, self.empty_files)

    @property
    def has_documents(self) -> bool:
        """Whether there may be several documents, so that a separator token is needed."""
        return self.document_separator != "file" or len(self.files) > 1

    def read_chunks(self, report: TextReport | None = None) -> Iterator[TextChunk]:
        """Yield the text in order, and count it. Raises a UserError if there is none."""
        for part in self.parts:
            part_report = report or TextReport(part.source_label)
            yield from part._read_files(part_report) if part.rules == NO_RULES else part._filter(part_report)

    def _filter(self, report: TextReport) -> Iterator[TextChunk]:
        """Yield the documents that pass the rules, each as one chunk."""
        text_filter, pieces = TextFilter(self.rules, report.n_filtered), list[str]()
        unfiltered = TextReport("")
        for chunk in self._read_files(unfiltered):
            pieces.append(chunk.text)
            if not chunk.is_last:
                continue
            text, pieces = "".join(pieces), []
            if text_filter.accepts(text):
                report.add(f"{text}\n")
                report.documents += 1
                yield TextChunk(text, True)
                if text_filter.is_full:
                    break
        for kind in ("malformed", "header", "bom"):
            setattr(report, kind, getattr(report, kind) + getattr(unfiltered, kind))
        if not text_filter.n_used:
            raise UserError(f"no usable text in {report}")

    def _read_files(self, report: TextReport) -> Iterator[TextChunk]:
        total = 0
        if self.fraction_range != (0.0, 1.0):
            total = sum(len(text) for path in self.files for text, kind in self._iter_spans(path))
        window = range(*(int(total * part) for part in self.fraction_range)) if total else None
        offset = 0  # characters before, in all files
        for path in self.files:
            document = _DocumentAccumulator(self.document_separator, window, report)
            start, is_visible = offset, False
            for text, kind in self._iter_spans(path):
                if kind:
                    is_counted = window is None or min(offset, total - 1) in window
                    setattr(report, kind, getattr(report, kind) + is_counted)
                    continue
                is_visible = is_visible or not is_blank(text)
                yield from document.add_span(text, offset)
                offset += len(text)
            yield from document.finish()
            if offset > start and not is_visible:
                raise UserError(f"{path.name}: no visible text")
        if not report.characters:
            share = "" if window is None else " in this split: data.valid_fraction is too small or too large"
            raise UserError(f"{self.source_label}: no text{share}")

    def _iter_spans(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield the text of a file line by line, or its columns value by value, as (text, "").

        What is no text is ("", kind): "malformed", "header" or "bom".
        """
        if self.table is None:
            for span in iter_spans(path):
                is_valid = span != BOM and is_text(span)
                yield (span.decode(), "") if is_valid else ("", "bom" if span == BOM else "malformed")
            return
        for _, row in read_rows(path, self.table, name_text_columns(self.columns), MAX_VALUE_BYTES):
            if not isinstance(row, str):
                yield from (
                    ((text.replace("\r\n", "\n") + "\n", "") if isinstance(text, str) else ("", "malformed"))
                    for text in row
                )
            elif row != "empty":
                yield "", row if row in ("header", "bom") else "malformed"


class _DocumentAccumulator:
    """Buffer of the current document; emits chunks and detects its end."""

    def __init__(self, separator: DocumentSeparator, window: range | None, report: TextReport) -> None:
        self.separator, self.window, self.report = separator, window, report
        self.buffer: list[str] = []
        self.size = 0
        self.is_open = self.is_selected = False  # whether a document has started, and is in the selected part
        self.at_line_start = True  # whether the next span starts a line

    def add_span(self, text: str, offset: int) -> Iterator[TextChunk]:
        """Add a line, or a part of a very long one; ``offset`` characters are before it."""
        if self.separator == "file":
            if self.window is not None:
                text = text[max(self.window.start - offset, 0) : max(self.window.stop - offset, 0)]
            yield from self._append(text)
            return
        is_separator = self.separator == "blank" and self.at_line_start and is_blank(text)
        self.at_line_start = text.endswith("\n")
        if is_separator:
            yield from self.finish()
            return
        if not self.is_open:
            if self.separator == "line" and self.at_line_start and is_blank(text):
                return
            self.is_open, self.is_selected = True, self.window is None or offset in self.window
        if self.is_selected:
            yield from self._append(text)
        if self.separator == "line" and self.at_line_start:
            yield from self.finish()

    def _append(self, text: str) -> Iterator[TextChunk]:
        if not text:
            return
        self.is_open = True
        self.report.add(text)
        self.buffer.append(text)
        self.size += len(text)
        if self.size >= _CHUNK_CHARS:
            # keep the last line: the last chunk of a document must be marked as its last
            *before, last = self.buffer
            if before:
                yield TextChunk("".join(before), False)
            self.buffer, self.size = [last], len(last)

    def finish(self) -> Iterator[TextChunk]:
        """Yield the rest of the document, if any.

        The separator after it replaces the end of its last line.
        """
        if self.buffer:
            text = "".join(self.buffer)
            self.report.documents += 1
            # the end of the file is the end of its last line
            if self.separator != "file" and not text.endswith("\n"):
                self.report.add("\n")
            yield TextChunk(text if self.separator == "file" else text.removesuffix("\n"), True)
        self.buffer, self.size, self.is_open = [], 0, False


def merge_texts(corpora: Sequence[TextFiles]) -> TextFiles:
    """Several texts as one."""
    files = tuple(path for corpus in corpora for path in corpus.files)
    return replace(corpora[0], files=files, name="", rules=NO_RULES, corpora=tuple(corpora))


def open_text(
    files: Sequence[Path],
    document_separator: DocumentSeparator,
    fraction_range: tuple[float, float] = (0.0, 1.0),
    columns: Sequence[ColumnKey] = (),
    format: str = "auto",
) -> TextFiles:
    """Open text files and check that they exist and are text; mistakes in the names raise a UserError here.

    With ``columns``, files of a table ``format``, or with names of TSV or JSONL files, are tables, and each
    value of those columns is a document.
    """
    if not files:
        raise UserError("no files: expected a plain text file")
    paths, empty = check_files(files)
    table = infer_table_format(paths, format)
    if not columns or table is None:
        return TextFiles(paths, document_separator, fraction_range, empty_files=empty)
    text = TextFiles(paths, "line", fraction_range, table, tuple(columns), empty)
    for path in paths:
        check_columns(path, table, name_text_columns(columns), MAX_VALUE_BYTES)
    return text


def read_text_lines(text: TextFiles) -> Iterator[str]:
    """Yield the lines, for training a tokenizer; a very long line in several parts."""
    for piece in text.read_chunks():
        for line in piece.text.splitlines(keepends=True):
            for start in range(0, len(line), MAX_TRAINING_CHARACTERS):
                yield line[start : start + MAX_TRAINING_CHARACTERS]
