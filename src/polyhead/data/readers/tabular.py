"""Read columns of TSV files and keys of JSONL files: checked before any work, then read line by line.

A column is an index (0 is the first) or, if the first line of a TSV is a header, a name. There is no quoting:
a tab always ends a column, "\\n" a line. A key of a JSONL file may be a dotted path, "translation.en".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.data.readers import csv, parquet
from polyhead.data.readers.files import (
    BOM,
    MAX_LINE,
    SAMPLE_BYTES,
    check_files,
    is_text,
    iter_lines,
    open_lines,
    read_column_names,
)

T = TypeVar("T")
ColumnKey = str | int
TableFormat = Literal["tsv", "jsonl"]
# column of each role, as named in recipes and messages: {"source": 0, "target": "de"}
ColumnsByRole = Mapping[str, ColumnKey]
# the values of the columns, or the kind of line: "empty", "malformed", "too_long", "header" (repeated), "bom"
TableRow = tuple[Any, ...] | str
TABLE_LABELS = {csv.CSV_SUFFIX: "CSV", parquet.PARQUET_SUFFIX: "Parquet"}
SAMPLE_LINES = 100  # lines examined to find out what a file contains, before it is read
FORMAT_BY_SUFFIX: dict[str, TableFormat] = {
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    # tables are read as lines of JSON
    **dict.fromkeys((".jsonl", ".ndjson", ".json", *TABLE_LABELS), "jsonl"),
}


def infer_format(paths: Sequence[Path]) -> TableFormat | None:
    """The format of files by their names, which must agree."""
    kinds = [_format_of_suffix(path) for path in paths]
    if len(set(kinds)) > 1:
        path_of_kind = {kind: path for path, kind in zip(paths, kinds, strict=True)}
        descriptions = ", ".join(
            f"{path.name} {TABLE_LABELS.get(_suffix(path), kind.upper() if kind else 'plain text')}"
            for kind, path in path_of_kind.items()
        )
        raise UserError(
            f"files read together must have one format; by their names these differ: {descriptions}; rename "
            "them, or set data.format in the recipe"
        )
    return kinds[0]


def infer_table_format(files: Sequence[Path], format: str = "auto") -> TableFormat | None:
    """The table format of files, from ``format`` or else from their names; None for plain text."""
    return cast(TableFormat, format) if format in ("tsv", "jsonl") else infer_format(files)


def inherit_format(files: Sequence[str | Path], recipe_files: Sequence[str], format: str) -> Any:
    """The format for ``files``: that of the recipe if named like ``recipe_files``, else "auto"."""
    kinds, recipe_kinds = (
        {_format_of_suffix(Path(file)) for file in names} for names in (files, recipe_files)
    )
    return format if kinds == recipe_kinds else "auto"


def _format_of_suffix(path: Path) -> TableFormat | None:
    return FORMAT_BY_SUFFIX.get(_suffix(path))


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def name_text_columns(columns: Sequence[ColumnKey]) -> dict[str, ColumnKey]:
    """Columns of texts by role: "text", or "text[0]" and further ones."""
    return {f"text[{i}]" if len(columns) > 1 else "text": column for i, column in enumerate(columns)}


def check_columns(path: Path, format: str, columns_by_role: ColumnsByRole, max_line: int = MAX_LINE) -> None:
    """Raise a UserError that lists the existing columns if a column is missing."""
    if format == "tsv":
        if csv.is_csv(path):
            raise UserError(
                f"{path.name} is CSV by its name, not TSV: remove data.format, or rename it to .tsv"
            )
        _column_indices(path, columns_by_role, max_line)
    else:
        check_unique(path, columns_by_role.values())
        _check_keys(path, columns_by_role, max_line)


def check_unique(path: Path, columns: Iterable[object]) -> None:
    """Raise a UserError if one of the columns is the name of several columns of a CSV or Parquet file."""
    names = read_column_names(path)
    for column in columns:
        if names.count(str(column)) > 1:
            raise UserError(
                f"{path} has {names.count(str(column))} columns named {column!r}: the name is ambiguous; "
                "rename one"
            )


def read_rows(
    path: Path, format: str, columns_by_role: ColumnsByRole, max_line: int = MAX_LINE
) -> Iterator[tuple[int, TableRow]]:
    """Yield (line number from 1, column values); a header is counted but not yielded.

    Values are text, or any JSON value. An item "bom" is not a line but a mark before the next one.
    """
    if format == "jsonl":
        parse_value = partial(_select_values, columns_by_role=columns_by_role, is_csv=csv.is_csv(path))
        yield from parse_lines(path, partial(_parse_value_line, parse=parse_value), max_line)
        return
    columns, header = _column_indices(path, columns_by_role, max_line)
    label = columns[[*columns_by_role].index("label")] if "label" in columns_by_role else None
    parse_row = partial(_parse_tsv_row, columns=columns, header=header, label=label)
    rows = parse_lines(path, parse_row, max_line)
    yield from islice(rows, int(header is not None), None)


def parse_lines(
    path: Path, parse_line: Callable[[bytes | None], T], max_line: int = MAX_LINE
) -> Iterator[tuple[int, T | str]]:
    """Yield (line number from 1, parsed line) of a file.

    A line from which a byte order mark was removed comes after an item "bom" of the same number.
    """
    for number, line in enumerate(iter_lines(path, max_line, keep_bom=True), 1):
        if line is not None and line.startswith(BOM):
            yield number, "bom"
            line = line.removeprefix(BOM)
        yield number, parse_line(line)


def parse_object_line(raw: bytes | None, parse: Callable[[dict[str, Any]], T | str]) -> T | str:
    """What ``parse`` makes of a line with a JSON object, or the kind of problem, with its UserError."""
    return _parse_value_line(raw, lambda row: parse(row) if isinstance(row, dict) else "malformed")


def _parse_value_line(raw: bytes | None, parse: Callable[[Any], T | str]) -> T | str:
    """As ``parse_object_line``, with any JSON value."""
    if raw is None:
        return "too_long"
    if is_blank_line(raw):
        return "empty"
    try:
        return parse(parse_json_line(raw)) if is_text(raw) else "malformed"
    except (ValueError, RecursionError) as error:
        return f"unsupported: {error}" if isinstance(error, UserError) else "malformed"


def check_object_files(
    files: Sequence[Path], parse_line: Callable[[bytes | None], object], unit: str, example: str
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(JSONL files, empty files) of ``files``; a missing one, or one without a usable row, is a UserError."""
    if not files:
        raise UserError(f"no files: expected a JSONL file of {unit}s")
    paths, empty = check_files(files)
    for path in paths:
        sample = [parse_line(raw) for raw in islice(iter_lines(path), SAMPLE_LINES)]
        problems = [row for row in sample if isinstance(row, str)]
        if len(problems) == len(sample):
            reason = next((problem for problem in problems if ": " in problem), "").partition(": ")[2]
            raise UserError(
                f"{path.name}: none of its first {len(sample)} lines is a {unit}; "
                f"{reason and reason + '; '}expected JSONL such as {example}"
            )
    return paths, empty


def _column_indices(
    path: Path, columns_by_role: ColumnsByRole, max_line: int
) -> tuple[list[int], bytes | None]:
    """(indices of the columns of a TSV, its header or None if columns are selected by index)."""
    first = islice(iter_lines(path, max_line), SAMPLE_LINES)
    header_line = next(first) or b""
    header = header_line.decode(errors="replace").split("\t")
    width = max([len(header), *((line or b"").count(b"\t") + 1 for line in first)])
    indices = []
    for column in columns_by_role.values():
        if isinstance(column, str):
            if column not in header:
                message = unknown_name_error(f"column of {path.name}", column, _shorten_names(header))
                raise UserError(f"{message}; without a header, columns are numbers: 0 is the first")
            if header.count(column) > 1:
                raise UserError(
                    f"{path.name} has {header.count(column)} columns named {column!r}: the name is "
                    "ambiguous; rename one, or use its number"
                )
            indices.append(header.index(column))
        elif not 0 <= column < width:
            raise UserError(
                f"{path.name} has {width} column{'s' * (width > 1)}: no column {column} (the first is 0)"
            )
        else:
            indices.append(column)
    has_header = any(isinstance(column, str) for column in columns_by_role.values())
    return indices, header_line if has_header else None


def _parse_tsv_row(
    line: bytes | None, columns: Sequence[int], header: bytes | None, label: int | None
) -> TableRow:
    if line is None:
        return "too_long"
    if line == header:
        return "header"
    if is_blank_line(line):
        return "empty"
    cells = line.split(b"\t")
    if len(cells) == label:  # the row ends before its label
        cells.append(b"")
    width = None if header is None else header.count(b"\t") + 1
    if len(cells) <= max(columns) or (width is not None and any(cells[width:])):
        return "malformed"
    values = [cells[column] for column in columns]
    return tuple(cell.decode() for cell in values) if all(map(is_text, values)) else "malformed"


def _select_values(row: Any, columns_by_role: ColumnsByRole, is_csv: bool) -> TableRow:
    """The values of the columns of a row of JSON."""
    if is_csv and is_header_row(row):
        return "header"
    values = tuple(_lookup(row, key) for key in columns_by_role.values())
    if not all(_is_valid_unicode(value) for value in values if isinstance(value, str)):
        return "malformed"
    return find_non_string(values, columns_by_role, type(None)) or values


def find_non_string(values: Iterable[Any], columns_by_role: ColumnsByRole, other: type = object) -> str:
    """The problem of a row with a value of type ``other`` in place of a text; "" if it has none."""
    for role, value in zip(columns_by_role, values, strict=False):
        if role != "label" and not isinstance(value, str) and isinstance(value, other):
            return f"malformed: {role} {format_value(value)}, expected a string"
    return ""


def is_header_row(row: Any) -> bool:
    """Whether a row of a CSV repeats the names of the columns, as where files are joined."""
    return isinstance(row, dict) and bool(row) and all(value == name for name, value in row.items())


def is_blank_line(line: bytes) -> bool:
    """Whether a line has no visible characters."""
    return not line.strip() or is_blank(line.decode(errors="replace"))


def parse_json_line(line: bytes) -> Any:
    """Parse a line of JSON; a duplicate key in an object is a ValueError, because it is ambiguous."""
    return _decode_json(line.decode().removeprefix("\ufeff"))


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(merged := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return merged


_decode_json = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys).decode


def _lookup(row: Any, key: ColumnKey) -> Any:
    """A value by key, by dotted path ("translation.en") or, in a list, by index."""
    if isinstance(key, int):
        return row[key] if isinstance(row, list) and 0 <= key < len(row) else None
    if isinstance(row, dict) and key in row:
        return row[key]
    for part in key.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _has_value(row: Any, key: ColumnKey) -> bool:
    """Whether the value exists and is not an object."""
    return not isinstance(_lookup(row, key), dict | None)


def _is_valid_unicode(text: str) -> bool:
    """Whether a string from JSON is valid Unicode text: an escape can encode half a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def no_rows_error(path: Path) -> UserError:
    """The error for a file without a row in its first lines; for one JSON list, how to convert it."""
    with open_lines(path) as file:
        is_list = file.read(SAMPLE_BYTES).removeprefix(BOM).lstrip().startswith(b"[")
    if is_list:
        return UserError(
            f"{path.name} is one JSON list; JSONL has one object per line: jq -c '.[]' {path.name} "
            f"> {path.stem}.jsonl"
        )
    return UserError(f"{path.name}: none of its first lines is a JSON object; JSONL has one object per line")


def _check_keys(path: Path, columns_by_role: ColumnsByRole, max_line: int) -> None:
    """Raise a UserError unless all keys exist in one of the first lines that are JSON objects or lists."""
    row, n_read = None, 0
    for line in islice(iter_lines(path, max_line), SAMPLE_LINES):
        candidate, n_read = _try_parse_json(line), n_read + 1
        if isinstance(candidate, dict | list):
            if all(_has_value(candidate, key) for key in columns_by_role.values()):
                return
            row = candidate if row is None else row
    if row is None or (
        isinstance(row, list) and n_read == 1 and all(isinstance(candidate, dict) for candidate in row)
    ):
        raise no_rows_error(path)
    for use, key in columns_by_role.items():
        if _has_value(row, key):
            continue
        if isinstance(inner := _lookup(row, key), dict):
            inner_keys = (
                ", ".join(_shorten_names([path for path, _ in flatten_object({str(key): inner})]))
                or "which is empty"
            )
            raise UserError(
                f"{path.name}: the key {key!r} holds an object: set {use} to a key inside it, {inner_keys}"
            )
        if isinstance(row, list):
            raise UserError(
                f"{path.name} has a list of {len(row)} per line: {use} must be a number below that, "
                f"got {key!r}"
            )
        key_paths = [path for path, _ in flatten_object(row)]
        if isinstance(key, int):
            raise UserError(
                f"{path.name} has the keys {', '.join(sorted(_shorten_names(key_paths)))}: set {use} to one "
                f"of them, got number {key}"
            )
        if key in key_paths:
            raise UserError(f"{path.name}: the key {key!r} is null in each of its first {n_read:,} lines")
        raise unknown_name_error(f"key of {path.name}", key, _shorten_names(key_paths))


def flatten_object(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys and values of an object; keys of nested objects as dotted paths."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", inner_value) for inner, inner_value in flatten_object(value))
        else:
            yield key, value


def _shorten_names(names: Iterable[str]) -> list[str]:
    """The first names, shortened: without a header they are whole sentences."""
    return [name[:40] for name in islice(names, 20)]


def _try_parse_json(line: bytes | None) -> Any:
    try:
        return json.loads(line or b"null")
    except (ValueError, RecursionError):
        return None
