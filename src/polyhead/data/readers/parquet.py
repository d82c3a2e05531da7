"""Read Parquet as JSONL: each row is one line, a JSON object with the columns as keys."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyhead.core.errors import UserError
from polyhead.data.readers.csv import LineStream, select_columns

PARQUET_MAGIC = b"PAR1"  # at both ends of a file
PARQUET_SUFFIX = ".parquet"
_BATCH_ROWS = 1024  # rows in memory at once


class LineReader(io.BufferedReader):
    """The lines of a Parquet file."""


def open_parquet(path: Path) -> BinaryIO:
    """Open a Parquet file as lines of JSON.

    Columns of bytes, such as images, are left out, and those without a name, or with that of another column.
    """
    file = _open_table(path)
    return cast(BinaryIO, LineReader(LineStream(_iter_json_chunks(file), file)))


def read_parquet_names(path: Path) -> list[str]:
    """The names of the columns, in order."""
    with _open_table(path) as file:
        return list(file.schema_arrow.names)


def _open_table(path: Path) -> Any:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged: {_first_line(error)}") from None


def _iter_json_chunks(file: Any) -> Iterator[bytes]:
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=_text_columns(file)):
            columns = {name: _list_values(batch.column(name)) for name in batch.schema.names}
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            yield "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in rows).encode()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise OSError(_first_line(error)) from None


def _list_values(column: Any) -> list[Any]:
    """The values of a column; times that Python has not, such as nanoseconds, as text, or null in lists."""
    import pyarrow

    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        with suppress(pyarrow.ArrowException):
            return list(column.cast("string").to_pylist())
        return [None] * len(column)


def _text_columns(file: Any) -> list[str]:
    fields = list(file.schema_arrow)
    columns = select_columns([field.name for field in fields])
    return [fields[i].name for i in columns if not _holds_bytes(fields[i].type)]


def _holds_bytes(arrow_type: Any) -> bool:
    """Whether a column type is binary, or contains a binary type."""
    from pyarrow import types

    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(arrow_type) for test in binary) or any(
        _holds_bytes(arrow_type.field(i).type) for i in range(arrow_type.num_fields)
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
