"""Columns of TSV files and keys of JSONL files: found before any work, then read line by line.

A column is a number (0 is the first) or, where the first line of a TSV names its columns, a name. Nothing is quoted: a
tab always ends a column, "\\n" a line. A key of a JSONL may be a dotted path, "translation.en".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from polyhead.data import comma, parquet
from polyhead.data.files import BOM, MAX_LINE, SAMPLE, is_text, lines, opened
from polyhead.errors import UserError, unknown

Column = str | int
# what each column is for, in recipes and messages: {"source": 0, "target": "de"}
Wanted = Mapping[str, Column]
# the values of the columns, or the kind of trouble: "blank", "broken", "overlong"
Row = tuple[Any, ...] | str
TABLES = {comma.SUFFIX: "CSV", parquet.SUFFIX: "Parquet"}
SAMPLE_LINES = 100  # looked at to tell what a file holds, before it is read
ENDINGS: dict[str, Literal["tsv", "jsonl"]] = {
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json", *TABLES), "jsonl"),  # tables are read as lines of JSON
}


def kind_of(paths: Sequence[Path]) -> Literal["tsv", "jsonl"] | None:
    """What the names of files say of their format, which must be one for all."""
    kinds = [_kind(path) for path in paths]
    if len(set(kinds)) > 1:
        of = {kind: path for path, kind in zip(paths, kinds, strict=True)}
        said = ", ".join(f"{path.name} {_called(path, kind)}" for kind, path in of.items())
        raise UserError(
            f"files that are read together are of one format, and by their names these are not: {said}; "
            "name them alike, or set data.format"
        )
    return kinds[0]


def format_like(files: Sequence[str | Path], own: Sequence[str], format: str) -> Any:
    """The format of a recipe's ``own`` files for others: the same where these are named alike, else what their names say."""
    return format if {_kind(Path(file)) for file in files} == {_kind(Path(file)) for file in own} else "auto"


def _kind(path: Path) -> Literal["tsv", "jsonl"] | None:
    return ENDINGS.get(_ending(path))


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _called(path: Path, kind: str | None) -> str:
    return TABLES.get(_ending(path), "plain text" if kind is None else kind.upper())


def check_columns(
    path: Path, format: Literal["tsv", "jsonl"], wanted: Wanted, longest: int = MAX_LINE
) -> None:
    """Every column is there, or a UserError says what is there instead."""
    if format == "tsv":
        if comma.is_csv(path):
            raise UserError(
                f"{path.name} is CSV by its name, not TSV: leave data.format out, or call it .tsv"
            )
        _numbers(path, wanted, longest)
    else:
        _check_keys(path, wanted, longest)


def rows(
    path: Path, format: Literal["tsv", "jsonl"], wanted: Wanted, longest: int = MAX_LINE
) -> Iterator[tuple[int, Row]]:
    """The number of each line (from 1; a header is none of them) and its columns: text, from JSONL whatever is there."""
    if format == "jsonl":
        yield from ((number, _json_row(line, wanted)) for number, line in enumerate(lines(path, longest), 1))
        return
    columns, width = _numbers(path, wanted, longest)
    headed = width is not None
    for number, line in enumerate(islice(lines(path, longest), int(headed), None), 1 + headed):
        yield number, _tsv_row(line, columns, width)


def _numbers(path: Path, wanted: Wanted, longest: int) -> tuple[list[int], int | None]:
    """The numbers of the columns of a TSV, and how many it has where the first line is a header that names them."""
    first = islice(lines(path, longest), SAMPLE_LINES)
    header = (next(first) or b"").decode(errors="replace").split("\t")
    width = max([len(header), *((line or b"").count(b"\t") + 1 for line in first)])
    found = []
    for column in wanted.values():
        if isinstance(column, str):
            if column not in header:
                said = unknown(f"column of {path.name}", column, _shown(header))
                raise UserError(f"{said}; without a header, columns are numbers: 0 is the first")
            if header.count(column) > 1:
                raise UserError(
                    f"{path.name} has {header.count(column)} columns named {column!r}: it is not clear which is meant; "
                    "rename one, or give its number"
                )
            found.append(header.index(column))
        elif not 0 <= column < width:
            raise UserError(
                f"{path.name} has {width} column{'s' * (width > 1)}, so there is no column {column} "
                "(the first is 0)"
            )
        else:
            found.append(column)
    named = any(isinstance(column, str) for column in wanted.values())
    return found, len(header) if named else None


def _tsv_row(line: bytes | None, columns: Sequence[int], width: int | None) -> Row:
    if line is None:
        return "overlong"
    if not line.strip():
        return "blank"
    cells = line.split(b"\t")
    if len(cells) <= max(columns) or (width is not None and any(cells[width:])):
        return "broken"
    chosen = [cells[column] for column in columns]
    return tuple(cell.decode() for cell in chosen) if all(map(is_text, chosen)) else "broken"


def _json_row(line: bytes | None, wanted: Wanted) -> Row:
    if line is None:
        return "overlong"
    if not line.strip():
        return "blank"
    try:
        row = read_json(line) if is_text(line) else None
    except (ValueError, RecursionError):
        return "broken"
    values = tuple(_lookup(row, key) for key in wanted.values())
    whole = all(value is not None and (not isinstance(value, str) or _whole(value)) for value in values)
    return values if whole else "broken"


def read_json(line: bytes) -> Any:
    """What a line says; a key that an object has twice is a ValueError, for which of its values is meant nobody can tell."""
    return _decode(line.decode().removeprefix("\ufeff"))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


_decode = json.JSONDecoder(object_pairs_hook=_once).decode


def _lookup(row: Any, key: Column) -> Any:
    """A value by key, by dotted path ("translation.en") or, in a list, by number."""
    if isinstance(key, int):
        return row[key] if isinstance(row, list) and 0 <= key < len(row) else None
    if isinstance(row, dict) and key in row:
        return row[key]
    for part in key.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _holds(row: Any, key: Column) -> bool:
    """Whether there is a value, and not only more keys."""
    return not isinstance(_lookup(row, key), dict | None)


def _whole(text: str) -> bool:
    """Whether a string from JSON is Unicode text: an escape can name half a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def no_rows(path: Path) -> UserError:
    """What to say of a file none of whose lines is a row: of one list of all rows, how to part them."""
    with opened(path) as file:
        one = file.read(SAMPLE).removeprefix(BOM).lstrip().startswith(b"[")
    if one:
        return UserError(
            f"{path.name} is one JSON list; JSONL has an object a line: jq -c '.[]' {path.name} > {path.stem}.jsonl"
        )
    return UserError(f"{path.name}: none of its first lines is a JSON object; JSONL has one object a line")


def _check_keys(path: Path, wanted: Wanted, longest: int) -> None:
    """All keys must exist in one of the first lines that are JSON objects or lists."""
    row, read = None, 0
    for line in islice(lines(path, longest), SAMPLE_LINES):
        one, read = _parse(line), read + 1
        if isinstance(one, dict | list):
            if all(_holds(one, key) for key in wanted.values()):
                return
            row = one if row is None else row
    if row is None or (isinstance(row, list) and read == 1 and all(isinstance(one, dict) for one in row)):
        raise no_rows(path)
    for use, key in wanted.items():
        if _holds(row, key):
            continue
        if isinstance(inner := _lookup(row, key), dict):
            named = ", ".join(_shown(_paths({str(key): inner}))) or "which is empty"
            raise UserError(
                f"{path.name}: the key {key!r} holds an object: set {use} to what is in it, {named}"
            )
        if isinstance(row, list):
            raise UserError(
                f"{path.name} has a list of {len(row)} a line: {use} must be a number below that, got {key!r}"
            )
        known = list(_paths(row))
        if isinstance(key, int):
            raise UserError(
                f"{path.name} has the keys {', '.join(sorted(_shown(known)))}: set {use} to one of them, got number {key}"
            )
        if key in known:
            raise UserError(f"{path.name}: the key {key!r} is null in each of its first {read:,} lines")
        raise unknown(f"key of {path.name}", key, _shown(known))


def _paths(row: dict[str, Any]) -> Iterator[str]:
    """The keys of an object, and of objects in it as dotted paths."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in _paths(value))
        else:
            yield key


def _shown(names: Iterable[str]) -> list[str]:
    """The first names, shortened: without a header they are whole sentences."""
    return [name[:40] for name in islice(names, 20)]


def _parse(line: bytes | None) -> Any:
    try:
        return json.loads(line or b"null")
    except (ValueError, RecursionError):
        return None
