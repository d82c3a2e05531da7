"""Parquet as JSONL: a row is a line with an object of its columns, so whatever reads lines of JSON reads it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyhead.data.made import Made
from polyhead.errors import UserError

MARK = b"PAR1"  # at both ends of a file
SUFFIX = ".parquet"
ROWS = 1024  # that are in memory at once


class Rows(io.BufferedReader):
    """The lines of a Parquet file."""


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
            f"{path} has {names.count(twice[0])} columns named {twice[0]!r}: it is not clear which is meant; rename one"
        )
    return cast(BinaryIO, Rows(Made(_pieces(file), file)))


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
