"""Read Parquet as JSONL: each row is one line, a JSON object with the columns as keys."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyhead.core.errors import UserError
from polyhead.data.readers.line_stream import LineStream

PARQUET_MAGIC = b"PAR1"  # at both ends of a file
PARQUET_SUFFIX = ".parquet"
_BATCH_ROWS = 1024  # rows in memory at once


class LineReader(io.BufferedReader):
    """The lines of a Parquet file."""


def open_parquet(path: Path) -> BinaryIO:
    """Open a Parquet file as lines of JSON; binary columns, such as images, are left out."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged: {_first_line(error)}") from None
    names = _text_columns(file)
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"{path} has {names.count(duplicates[0])} columns named {duplicates[0]!r}: the name is "
            "ambiguous; rename one"
        )
    return cast(BinaryIO, LineReader(LineStream(_iter_json_chunks(file), file)))


def _iter_json_chunks(file: Any) -> Iterator[bytes]:
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=_text_columns(file)):
            rows = (json.dumps(row, ensure_ascii=False, default=str) for row in batch.to_pylist())
            yield "".join(f"{row}\n" for row in rows).encode()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise OSError(_first_line(error)) from None


def _text_columns(file: Any) -> list[str]:
    return [field.name for field in file.schema_arrow if not _holds_bytes(field.type)]


def _holds_bytes(arrow_type: Any) -> bool:
    """Whether a column type is binary, or contains a binary type."""
    from pyarrow import types

    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(arrow_type) for test in binary) or any(
        _holds_bytes(arrow_type.field(i).type) for i in range(arrow_type.num_fields)
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
