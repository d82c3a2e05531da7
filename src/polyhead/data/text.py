"""Plain text: files, or columns of tables, cut into documents and read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.columns import Column, check_columns, kind_of, rows
from polyhead.data.files import check_file, is_text, spans
from polyhead.data.reading import blank, names
from polyhead.errors import UserError
from polyhead.text.learn import MAX_TRAINING_CHARACTERS

Documents = Literal["file", "line", "blank"]
Table = Literal["tsv", "jsonl"]
PIECE = 1 << 16  # characters handed over together
LONGEST = 1 << 24  # bytes of a line of a table, for a value may be a whole book


class Piece(NamedTuple):
    """Some of a document's text, and whether the document ends with it."""

    text: str
    last: bool


@dataclass
class TextReport:
    """What became of a text, and what perplexity is counted by. What parts two documents counts in none of it."""

    where: str
    documents: int = 0
    lines: int = 0
    characters: int = 0
    words: int = 0  # between blanks; the end of a line counts as one, as in the literature on WikiText
    broken: int = 0

    def count(self, text: str) -> None:
        """Some more text, whole lines but perhaps the last."""
        ends = text.count("\n")
        self.lines += ends
        self.characters += len(text)
        self.words += len(text.split()) + ends

    def __str__(self) -> str:
        """One line in English: 'input.txt: 1 document, 40,000 lines, 1,115,394 characters'."""
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        one = "{where}: {documents:,} document, {lines:,} lines, {characters:,} characters"
        many = "{where}: {documents:,} documents, {lines:,} lines, {characters:,} characters"
        counts = tr(
            one if self.documents == 1 else many,
            where=self.where,
            documents=self.documents,
            lines=self.lines,
            characters=self.characters,
        )
        if not self.broken:
            return counts
        return counts + tr("; skipped {count:,} lines that are no text or too long", count=self.broken)


@dataclass(frozen=True)
class Text:
    """Files of text, and where one document ends and the next begins.

    ``documents``: "file" (a file is one, whole), "line" (a line is one, without its end) or "blank" (lines up to a
    blank one, which belongs to none). ``share`` keeps that part of the characters, such as (0.9, 1.0), the last
    tenth: a file is cut at the very character, a line or paragraph belongs whole to the share it begins in.
    Of a ``table``, TSV or JSONL, each value of the ``columns`` is a document, with its line ends.
    """

    files: tuple[Path, ...]
    documents: Documents = "file"
    share: tuple[float, float] = (0.0, 1.0)
    table: Table | None = None
    columns: tuple[Column, ...] = ()

    @property
    def where(self) -> str:
        return names(self.files)

    @property
    def marked(self) -> bool:
        """Whether there may be several documents, so that a mark must part them."""
        return self.documents != "file" or len(self.files) > 1

    def pieces(self, report: TextReport) -> Iterator[Piece]:
        """The text in order. An error if there is none."""
        total = 0
        if self.share != (0.0, 1.0):
            total = sum(len(text or "") for path in self.files for text in self._spans(path))
        window = range(*(int(total * part) for part in self.share)) if total else None
        at = 0  # characters before, of all files
        for path in self.files:
            document = _Document(self.documents, window, report)
            for text in self._spans(path):
                if text is None:
                    report.broken += window is None or min(at, total - 1) in window
                    continue
                yield from document.take(text, at)
                at += len(text)
            yield from document.end()
        if not report.characters:
            share = (
                "" if window is None else " in this share of it: data.valid_share is too small or too large"
            )
            raise UserError(f"{self.where}: no text{share}")

    @property
    def wanted(self) -> dict[str, Column]:
        """The columns of a table by what they are for."""
        return {
            f"text[{i}]" if len(self.columns) > 1 else "text": column for i, column in enumerate(self.columns)
        }

    def _spans(self, path: Path) -> Iterator[str | None]:
        """The text of a file, a line at a time, or its columns, a value at a time; None for what is not text."""
        if self.table is None:
            yield from (span.decode() if is_text(span) else None for span in spans(path))
            return
        for _, row in rows(path, self.table, self.wanted, LONGEST):
            if isinstance(row, str):
                yield from () if row == "blank" else (None,)
            else:
                yield from (f"{_plain(text)}\n" if isinstance(text, str) else None for text in row)


class _Document:
    """The document that is being read: what is held of it, and where it ends."""

    def __init__(self, kind: Documents, window: range | None, report: TextReport) -> None:
        self.kind, self.window, self.report = kind, window, report
        self.held: list[str] = []
        self.size = 0
        self.open = self.wanted = False  # whether a document is under way, and is in the share
        self.fresh = True  # whether a line begins here

    def take(self, text: str, at: int) -> Iterator[Piece]:
        """A line, or a part of a very long one, with ``at`` characters before it."""
        if self.kind == "file":
            if self.window is not None:
                text = text[max(self.window.start - at, 0) : max(self.window.stop - at, 0)]
            yield from self._add(text)
            return
        parts = self.kind == "blank" and self.fresh and blank(text)
        self.fresh = text.endswith("\n")
        if parts:
            yield from self.end()
            return
        if not self.open:
            if self.kind == "line" and self.fresh and blank(text):
                return
            self.open, self.wanted = True, self.window is None or at in self.window
        if self.wanted:
            yield from self._add(text)
        if self.kind == "line" and self.fresh:
            yield from self.end()

    def _add(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        self.open = True
        self.report.count(text)
        self.held.append(text)
        self.size += len(text)
        if self.size >= PIECE:
            # the last line stays: nothing that ends a document is handed over before its end is known
            *before, last = self.held
            if before:
                yield Piece("".join(before), False)
            self.held, self.size = [last], len(last)

    def end(self) -> Iterator[Piece]:
        """The rest of the document, if there is one; the mark after it stands for the end of its last line."""
        if self.held:
            text = "".join(self.held)
            self.report.documents += 1
            # the end of the file is the end of its last line
            if self.kind != "file" and not text.endswith("\n"):
                self.report.count("\n")
            yield Piece(text if self.kind == "file" else text.removesuffix("\n"), True)
        self.held, self.size, self.open = [], 0, False


def _plain(text: str) -> str:
    """A value of a table as it would be read from a file: without the "\\r" of a "\\r\\n"."""
    return text.replace("\r\n", "\n")


def table_of(files: Sequence[Path], format: str = "auto") -> Table | None:
    """What kind of table files are, by that format or else by their names; None for plain text."""
    return cast(Table, format) if format in ("tsv", "jsonl") else kind_of(files)


def open_text(
    files: Sequence[Path],
    documents: Documents,
    share: tuple[float, float] = (0.0, 1.0),
    columns: Sequence[Column] = (),
    format: str = "auto",
) -> Text:
    """The text of some files, which are there and are text; every mistake in the names is found here.

    With ``columns`` files of that format, or whose names say TSV or JSONL, are tables, and each value of those columns
    is a document.
    """
    if not files:
        raise UserError("no files: name a file of plain text")
    paths = tuple(check_file(path) for path in files)
    table = table_of(paths, format)
    if not columns or table is None:
        return Text(paths, documents, share)
    text = Text(paths, "line", share, table, tuple(columns))
    for path in paths:
        check_columns(path, table, text.wanted, LONGEST)
    return text


def texts(text: Text) -> Iterator[str]:
    """The lines, as a tokenizer learns from them; a very long one in parts."""
    for piece in text.pieces(TextReport(text.where)):
        for line in piece.text.splitlines(keepends=True):
            for at in range(0, len(line), MAX_TRAINING_CHARACTERS):
                yield line[at : at + MAX_TRAINING_CHARACTERS]
