"""Parquet as JSONL: a row is a line with an object of its columns, so whatever reads lines of JSON reads it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyhead.errors import UserError

MARK = b"PAR1"  # at both ends of a file
SUFFIX = ".parquet"
ROWS = 1024  # that are in memory at once


class Rows(io.BufferedReader):
    """The lines of a Parquet file."""


def is_table(path: Path) -> bool:
    """Whether a file is Parquet, by its name or by how it begins."""
    if path.suffix.lower() == SUFFIX or not path.is_file():
        return path.suffix.lower() == SUFFIX
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK


def opened(path: Path) -> BinaryIO:
    """The lines of a Parquet file as bytes; columns of bytes, such as pictures, are left out."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged: {_first(error)}") from None
    names = _columns(file)
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"{path} has {names.count(twice[0])} columns named {twice[0]!r}: which is meant cannot be told; rename one"
        )
    return cast(BinaryIO, Rows(_Lines(file)))


class _Lines(io.RawIOBase):
    def __init__(self, file: Any) -> None:
        self.file, self.pieces, self.rest = file, _pieces(file), memoryview(b"")

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


def _pieces(file: Any) -> Iterator[bytes]:
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=ROWS, columns=_columns(file)):
            rows = (json.dumps(row, ensure_ascii=False, default=str) for row in batch.to_pylist())
            yield "".join(f"{row}\n" for row in rows).encode()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise OSError(_first(error)) from None


def _columns(file: Any) -> list[str]:
    return [field.name for field in file.schema_arrow if not _of_bytes(field.type)]


def _of_bytes(kind: Any) -> bool:
    """Whether a column holds bytes, or something that has them in it."""
    from pyarrow import types

    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in binary) or any(
        _of_bytes(kind.field(i).type) for i in range(kind.num_fields)
    )


def _first(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
