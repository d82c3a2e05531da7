"""Read CSV as JSONL: each row is one line, a JSON object with the columns as keys.

The first row names the columns. As in RFC 4180, a quoted field may contain commas, line breaks and quotes,
with quotes doubled; spaces before its opening quote are ignored. The delimiter may also be a semicolon or a
tab: the one that is most frequent in the first line, or any character that a line ``sep=;`` before it names,
as Excel writes it. Columns without a name, or with the name of another column, are left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, BinaryIO, cast

CSV_SUFFIX = ".csv"
MAX_COLUMNS = 1 << 14  # of a table, as in a spreadsheet
_DELIMITERS = ",;\t"
_MAGIC_LEN = 512  # bytes that identify other formats
_SEPARATOR_LINE = re.compile(r'"?sep=([^\r\n"])"?[\r\n]*', re.IGNORECASE)
_BOM = "\ufeff"
csv.field_size_limit(1 << 24)  # characters; an unclosed quote would take the rest of the file


class LineStream(io.RawIOBase):
    """Raw stream over generated lines of bytes; closing it closes ``file``, the source of ``pieces``."""

    def __init__(self, pieces: Iterator[bytes], file: Any) -> None:
        self.pieces, self.file, self.rest = pieces, file, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            self.rest = memoryview(next(self.pieces, b""))
        n = min(len(buffer), len(self.rest))
        buffer[:n] = self.rest[:n]
        self.rest = self.rest[n:]
        return n

    def close(self) -> None:
        self.file.close()
        super().close()


def is_csv(path: Path) -> bool:
    """Whether a file is CSV, by its name alone."""
    return path.name.lower().endswith((CSV_SUFFIX, f"{CSV_SUFFIX}.gz"))


def open_csv(file: BinaryIO, check: Callable[[bytes], None]) -> BinaryIO:
    """Open a CSV file as lines of JSON; ``check`` is called with its first bytes.

    A byte order mark at the start of a row after the first stays before its line.
    """
    return cast(BinaryIO, io.BufferedReader(LineStream(_iter_json_lines(file, check), file)))


def read_csv_header(file: BinaryIO) -> list[str]:
    """The names of the columns, in order."""
    with _open_text(file) as text:
        return next(_iter_rows(text), ("", []))[1]


def select_columns(names: list[str]) -> list[int]:
    """The indices of the columns that can be read by name: those with a name that no other column has."""
    check_width(names)
    counts = Counter(names)
    return [i for i, name in enumerate(names) if name.strip() and counts[name] == 1]


def check_width(columns: Sized) -> None:
    """Raise an OSError, as for other damage of a file, if a table has too many columns."""
    if len(columns) > MAX_COLUMNS:
        raise OSError(f"it has {len(columns):,} columns; the maximum is {MAX_COLUMNS:,}")


def _open_text(file: BinaryIO) -> io.TextIOWrapper:
    # bytes that are not UTF-8 are passed through unchanged, so that the line is counted as malformed
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _iter_json_lines(file: BinaryIO, check: Callable[[bytes], None]) -> Iterator[bytes]:
    check(file.read(_MAGIC_LEN))
    file.seek(0)
    with _open_text(file) as text:
        rows = _iter_rows(text)
        _, names = next(rows, ("", []))
        columns = select_columns(names)
        # a row may lack unnamed columns at its end, or have more cells without a text
        min_width = max((i for i, name in enumerate(names) if name.strip()), default=-1) + 1
        for bom, row in rows:
            is_valid = len(row) >= min_width and not any(row[len(names) :])
            record = {names[i]: row[i] for i in columns} if is_valid else None
            # a row with a wrong number of columns is malformed, an empty row stays an empty line
            line = json.dumps(record, ensure_ascii=False) if row else ""
            yield f"{bom}{line}\n".encode(errors="surrogateescape")


def _iter_rows(text: io.TextIOWrapper) -> Iterator[tuple[str, list[str]]]:
    """Yield the byte order mark before each row, mostly "", and its cells."""
    first = text.readline()
    separator = _SEPARATOR_LINE.fullmatch(first)
    delimiter = separator[1] if separator else ""
    first = text.readline() if separator else first
    lines = _RecordLines(
        chain([first], text), delimiter or max(_DELIMITERS, key=first.count), int(bool(separator))
    )
    rows = csv.reader(lines, delimiter=lines.delimiter, strict=True)
    while True:
        lines.start_record()
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise OSError(lines.describe_error(error)) from None
        if row is None:
            return
        yield lines.bom, row


class _RecordLines:
    """Iterator over the lines of a file for ``csv.reader``, which keeps those of the current record."""

    def __init__(self, lines: Iterator[str], delimiter: str, n_before: int) -> None:
        self.lines, self.delimiter = lines, delimiter
        self.n_before = n_before  # lines of the file before the current record
        self.record: list[str] = []
        self.bom = ""  # the byte order mark that was removed from the current record
        mark = re.escape(delimiter)
        self.spaced_quote = re.compile(f'(?:^|{mark}) +"')
        # spaces before a quoted field; text that only contains quotes keeps them
        self.spaces = re.compile(rf' +(?="(?:[^"]+|"")*+(?:\Z|"(?:[{mark}\r\n]|\Z)))')
        self.field = re.compile(rf'(?P<quoted>"(?:[^"]+|"")*+"?)?(?P<rest>[^{mark}\r\n]*)')

    def __iter__(self) -> _RecordLines:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        if line.startswith(_BOM):
            line, self.bom = line.removeprefix(_BOM), _BOM
        if self.spaced_quote.search(line):
            line = self._remove_spaces(line)
        self.record.append(line)
        return line

    def start_record(self) -> None:
        """The next line starts a record."""
        self.n_before += len(self.record)
        self.record, self.bom = [], ""

    def describe_error(self, error: csv.Error) -> str:
        """The error of the current record, and the line in which the quote opens that is not closed."""
        text, last = "".join(self.record), self.n_before + len(self.record)
        quoted_fields = (field for field in self._iter_fields(text) if field["quoted"])
        bad = next((field for field in quoted_fields if field["rest"] or field.end() == len(text)), None)
        ends = accumulate(map(len, self.record), initial=0)
        first = last if bad is None else self.n_before + sum(end <= bad.start() for end in ends)
        if bad is None or (bad["rest"] and first == last):
            return f"line {last} of the file is not CSV: {error}"
        problem = "is not closed"
        if bad["rest"]:
            problem = f"is closed only in line {last}, before {bad['rest'][:20]!r}"
        return f"line {first} of the file is not CSV: the quote that opens there {problem}"

    def _iter_fields(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the matches of the fields of a record."""
        position = 0
        while (field := self.field.match(text, position)) is not None:
            yield field
            position = field.end() + 1
            if text[field.end() : position] != self.delimiter:
                return

    def _remove_spaces(self, line: str) -> str:
        """Remove the spaces before quoted fields."""
        # a record continues in another line only inside quotes
        prefix = '"' if self.record else ""
        text, parts, position = prefix + line, [], 0
        while True:
            if spaces := self.spaces.match(text, position):
                position = spaces.end()
            field = self.field.match(text, position)
            end = field.end() if field else position
            parts.append(text[position : end + 1])
            position = end + 1
            if text[end:position] != self.delimiter:
                return ("".join(parts) + text[position:]).removeprefix(prefix)
