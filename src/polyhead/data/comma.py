"""CSV as JSONL: a row is a line with an object of its columns, so whatever reads lines of JSON reads it.

The first row names the columns. As RFC 4180 has it, what stands in quotes may hold commas, line ends and quotes, those
twice; the columns may be parted by semicolons or tabs as well, whichever the first line has most of.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from polyhead.data.made import Made
from polyhead.errors import UserError

SUFFIX = ".csv"
PARTS = ",;\t"
BEGIN = 8  # bytes that tell what is packed
csv.field_size_limit(1 << 24)  # characters, for a quote that is never closed would take all that follows


def is_csv(path: Path) -> bool:
    """Whether a file is CSV, which its name alone tells."""
    return path.name.lower().endswith((SUFFIX, f"{SUFFIX}.gz"))


def opened(path: Path, file: BinaryIO, check: Callable[[bytes], None]) -> BinaryIO:
    """The lines of a CSV file as bytes; ``check`` is shown how it begins."""
    return cast(BinaryIO, io.BufferedReader(Made(_lines(path, file, check), file)))


def _lines(path: Path, file: BinaryIO, check: Callable[[bytes], None]) -> Iterator[bytes]:
    check(file.read(BEGIN))
    file.seek(0)
    # bytes that are no UTF-8 come out as they went in, so that the line is counted as what it is
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        first = text.readline()
        rows = csv.reader(chain([first], text), delimiter=max(PARTS, key=first.count), strict=True)
        try:
            names = next(rows, [])
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError(
                    f"{path} has {names.count(twice[0])} columns named {twice[0]!r}: it is not clear which is meant; "
                    "rename one"
                )
            for row in rows:
                # a row of more or fewer columns is broken, and an empty one stays an empty line
                said = dict(zip(names, row, strict=True)) if len(row) == len(names) else None
                line = json.dumps(said, ensure_ascii=False) if row else ""
                yield f"{line}\n".encode(errors="surrogateescape")
        except csv.Error as error:
            raise OSError(f"line {rows.line_num} of the file is no CSV: {error}") from None
