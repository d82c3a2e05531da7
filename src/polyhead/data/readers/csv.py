"""Read CSV as JSONL: each row is one line, a JSON object with the columns as keys.

The first row names the columns. As in RFC 4180, a quoted field may contain commas, line breaks and quotes,
with quotes doubled. The delimiter may also be a semicolon or a tab: the one that is most frequent in the
first line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from polyhead.core.errors import UserError
from polyhead.data.readers.line_stream import LineStream

CSV_SUFFIX = ".csv"
_DELIMITERS = ",;\t"
_MAGIC_LEN = 8  # bytes that identify compressed formats
csv.field_size_limit(1 << 24)  # characters; an unclosed quote would take the rest of the file


def is_csv(path: Path) -> bool:
    """Whether a file is CSV, by its name alone."""
    return path.name.lower().endswith((CSV_SUFFIX, f"{CSV_SUFFIX}.gz"))


def open_csv(path: Path, file: BinaryIO, check: Callable[[bytes], None]) -> BinaryIO:
    """Open a CSV file as lines of JSON; ``check`` is called with its first bytes."""
    return cast(BinaryIO, io.BufferedReader(LineStream(_iter_json_lines(path, file, check), file)))


def _iter_json_lines(path: Path, file: BinaryIO, check: Callable[[bytes], None]) -> Iterator[bytes]:
    check(file.read(_MAGIC_LEN))
    file.seek(0)
    # bytes that are not UTF-8 are passed through unchanged, so that the line is counted as malformed
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        first = text.readline()
        rows = csv.reader(chain([first], text), delimiter=max(_DELIMITERS, key=first.count), strict=True)
        try:
            names = next(rows, [])
            if duplicates := [name for name in names if names.count(name) > 1]:
                raise UserError(
                    f"{path} has {names.count(duplicates[0])} columns named {duplicates[0]!r}: the name is "
                    "ambiguous; rename one"
                )
            for row in rows:
                # a row with a wrong number of columns is malformed, an empty row stays an empty line
                record = dict(zip(names, row, strict=True)) if len(row) == len(names) else None
                line = json.dumps(record, ensure_ascii=False) if row else ""
                yield f"{line}\n".encode(errors="surrogateescape")
        except csv.Error as error:
            raise OSError(f"line {rows.line_num} of the file is not CSV: {error}") from None
