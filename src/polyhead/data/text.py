"""Plain text for language models: files cut into documents, read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from polyhead.data.corpus import blank
from polyhead.data.files import MAX_LINE, check_file, is_text, lines
from polyhead.errors import UserError

Documents = Literal["file", "line", "blank"]
PIECE = 1 << 16  # characters handed over together


class Piece(NamedTuple):
    """Some of a document's text, whole lines with their ends, and whether the document ends with it."""

    text: str
    last: bool


@dataclass
class TextReport:
    """What became of the lines of a text, and what perplexity is counted by."""

    where: str
    lines: int = 0
    broken: int = 0
    documents: int = 0
    characters: int = 0
    words: int = 0  # between blanks; the end of a line counts as one, as in the literature on WikiText

    def __str__(self) -> str:
        """One line: 'input.txt: 1 document, 40,000 lines, 1,115,394 characters'."""
        skipped = f"; skipped {self.broken:,} lines that are no text" if self.broken else ""
        many = "" if self.documents == 1 else "s"
        return (
            f"{self.where}: {self.documents:,} document{many}, {self.lines:,} lines, "
            f"{self.characters:,} characters{skipped}"
        )


@dataclass(frozen=True)
class Text:
    """Files of plain text, and where one document ends and the next begins.

    ``documents``: "file" (a file is one), "line" (a line is one), "blank" (a blank line ends one). ``share`` keeps
    the lines in that part of the characters, such as (0.9, 1.0), the last tenth.
    """

    files: tuple[Path, ...]
    documents: Documents = "file"
    share: tuple[float, float] = (0.0, 1.0)

    @property
    def where(self) -> str:
        return " + ".join(path.name for path in self.files)

    def pieces(self, report: TextReport) -> Iterator[Piece]:
        """The text in order. An error if there is none."""
        total = 0
        if self.share != (0.0, 1.0):
            total = sum(len(line) + 1 for line in chain.from_iterable(map(_lines, self.files)) if line is not None)
        begin, end = (int(total * part) for part in self.share)
        at = 0
        for path in self.files:
            held: list[str] = []
            size = 0
            for line in _lines(path):
                if line is None:
                    report.broken += 1
                    continue
                text = line + "\n"
                at, start = at + len(text), at
                if total and (at <= begin or start >= end):
                    continue
                if total:
                    text = text[max(begin - start, 0) : end - start]
                report.lines += 1
                report.characters += len(text)
                report.words += len(text.split()) + 1
                ends = self.documents == "line" or (self.documents == "blank" and blank(text))
                if ends and not held and blank(text):
                    continue
                held.append(text)
                size += len(text)
                if ends or size >= PIECE:
                    report.documents += ends
                    yield Piece("".join(held), ends)
                    held, size = [], 0
            if held or self.documents == "file":
                report.documents += 1
                yield Piece("".join(held), True)
        if not report.characters:
            raise UserError(f"{self.where}: no text")


def open_text(
    files: Sequence[Path], documents: Documents, share: tuple[float, float] = (0.0, 1.0)
) -> Text:
    """The text of some files, which are there and are text; every mistake in the names is found here."""
    if not files:
        raise UserError("no files: name a file of plain text")
    return Text(tuple(check_file(path) for path in files), documents, share)


def texts(text: Text) -> Iterator[str]:
    """The lines, as a tokenizer learns from them."""
    for piece in text.pieces(TextReport(text.where)):
        yield from piece.text.splitlines(keepends=True)


def _lines(path: Path) -> Iterator[str | None]:
    """Lines without their ends; None for one that is not text, or longer than any line should be."""
    for line in lines(path):
        yield line.decode() if line is not None and len(line) <= MAX_LINE and is_text(line) else None
