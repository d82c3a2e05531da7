"""Infer the roles of table columns (text, label, source, target) from their names, else from their values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from polyhead.core.errors import UserError, format_value
from polyhead.core.i18n import tr
from polyhead.data.readers.conversations import MESSAGE_KEYS
from polyhead.data.readers.csv import check_width, is_csv, select_columns
from polyhead.data.readers.files import is_text, iter_lines
from polyhead.data.readers.labeled import has_fraction, is_label, is_number, normalize_label
from polyhead.data.readers.plain_text import MAX_VALUE_BYTES
from polyhead.data.readers.preferences import LABEL_KEYS, PAIR_KEYS
from polyhead.data.readers.tabular import (
    ColumnKey,
    flatten_object,
    is_header_row,
    no_rows_error,
    parse_json_line,
)
from polyhead.data.readers.text_pairs import ANCHOR_KEYS, SCORE_KEYS

Keys = Mapping[str, Any]
"""Keys of a section of a recipe that the user set, or of a whole recipe with dots."""
_LANGUAGE_CODE = re.compile("[a-z]{2}")  # language code as a column name
_ID_COLUMN = re.compile(r"(^|[\W_\d])(id|ID|Id)$|[a-z]I[dD]$", re.ASCII)  # but not "paid"
SEVERAL_COLUMNS = (
    "{columns} could each be the label, and a text has one: data.label={first} trains a classifier of it."
)
SEVERAL_LABELS = (
    "{column} has several labels per text: task=multi-label learns them; for one of them, write it into a "
    "column of its own, yes or no."
)
SCORES = (
    "{column} has scores such as {example}, not classes: task=regression learns them; round them to integers "
    "to train a classifier."
)
SINGLE_CLASS = "{column} is {label} in each text: a classifier needs at least two classes."
_SAMPLE_LINES = 2000  # lines that are examined
_SAMPLE_BYTES = 1 << 25  # bytes that are examined
_SIDE_NAMES = {
    "source": ("source", "src", "input", "question", "prompt", "instruction", "context"),
    "target": ("target", "tgt", "output", "answer", "completion"),
}
_LABEL_NAMES = (
    "label",
    "labels",
    "class",
    "category",
    "topic",
    "sentiment",
    "intent",
    "stars",
    "rating",
    "y",
)
_TEXT_NAMES = (
    "text",
    "sentence",
    "content",
    "review",
    "body",
    "document",
    "story",
    "article",
    "question",
    "title",
)
_PAIR_NAMES = (("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text_a",
    "text_b"),
         ("query", "passage"), ("question", "sentence"), ("question", "context"), SCORE_KEYS[:2])  # fmt: skip
_KNOWN_NAMES = {
    *_SIDE_NAMES["source"],
    *_SIDE_NAMES["target"],
    *_LABEL_NAMES,
    *_TEXT_NAMES,
    *(name for pair in _PAIR_NAMES for name in pair),
    "id",
    "idx",
    "index",
}


@dataclass(frozen=True)
class TableColumns:
    """The first values of every column of a table."""

    name: str  # file name
    values: Mapping[ColumnKey, list[Any]]

    @property
    def label_columns(self) -> list[ColumnKey]:
        """Columns that may be labels: few distinct short values, each of them frequent."""
        return [column for column, values in self.values.items() if _is_categorical(values)]

    @property
    def text_columns(self) -> list[ColumnKey]:
        """Columns of text, sorted by their names, then by length."""
        columns = [
            column
            for column, values in self.values.items()
            if _is_prose(values) or (_last_key(column) == _TEXT_NAMES[0] and _string_values(values))
        ]
        length = {column: sum(map(len, self.values[column])) for column in columns}
        return sorted(columns, key=lambda column: (_name_rank(column, _TEXT_NAMES), -length[column]))

    def infer_task(self, given_keys: Keys) -> str:
        """The task that the columns allow; ``given_keys`` are the roles set by the user."""
        if any(column in MESSAGE_KEYS for column in self.values):
            return "chat"
        if self.values.keys() >= set(PAIR_KEYS):
            return "dpo"
        if self.values.keys() >= set(LABEL_KEYS) and "label" not in given_keys:
            return "kto"
        if any(self.values.keys() >= set(keys) for keys in (ANCHOR_KEYS, SCORE_KEYS)):
            return "embedding"
        if any(map(_are_answers, self.values.values())) and "label" not in given_keys:
            return "question-answering"
        if any(map(_are_spans, self.values.values())):
            return "token-classification"
        if "label" in given_keys:
            return "classification"
        if _SIDE_NAMES.keys() & given_keys.keys() or self._find_sides(given_keys):
            return "translation"
        label = self._find_label()
        if "text" not in given_keys and (label is None or _name_rank(label, _LABEL_NAMES) > 1):
            self._reject_labels()
        texts = [column for column in self.text_columns if column != label]
        if label is not None and (texts or "text" in given_keys):
            return "classification"
        if (
            len(texts) == 1
            or "text" in given_keys
            or (texts and _name_rank(texts[0], _TEXT_NAMES) < len(_TEXT_NAMES))
        ):
            return "language-model"
        if len(texts) == 2:
            return "translation"
        raise UserError(
            f"{self.name} has the columns {self._list_names()}: the columns to use are ambiguous; set e.g. "
            "data.text=... data.label=..., or data.source=... data.target=..., or only data.text=... for a "
            "language model"
        )

    def assign_roles(self, task: str, given_keys: Keys) -> dict[str, Any]:
        """The keys of the ``data`` section that assign columns to roles."""
        if task in ("chat", "dpo", "kto", "embedding"):
            return {}
        if task == "translation":
            if sides := self._find_sides(given_keys):
                return dict(zip(_SIDE_NAMES, sides, strict=True))
            missing_sides = [use for use in _SIDE_NAMES if use not in given_keys]
            texts = [
                column
                for column in self.values
                if column in self.text_columns and column not in given_keys.values()
            ]
            if len(texts) != len(missing_sides):
                raise UserError(
                    f"{self.name} has the columns {self._list_names()}: set the two sides, "
                    "data.source=... data.target=..."
                )
            return dict(zip(missing_sides, texts, strict=True))
        if task in _LABEL_NOUNS:
            label = given_keys.get("label", self._find_label() if task == "classification" else None)
            if "label" not in given_keys and task in _LABEL_TESTS:
                named = (*_LABEL_NAMES, "score", "tags")
                labels = [column for column, values in self.values.items() if _LABEL_TESTS[task](values)]
                label = next((one for one in labels if _last_key(one) in named), next(iter(labels), None))
            if label is None:
                needed = f"none {_LABEL_NOUNS[task]}data.label=..."
                raise UserError(f"{self.name} has the columns {self._list_names()}: {needed}")
            return {"text": given_keys.get("text") or self._find_text_columns(label), "label": label}
        return {"text": given_keys.get("text") or self._first_text_column(self.text_columns)}

    def _find_sides(self, given_keys: Keys) -> list[ColumnKey]:
        """The columns of source and target, from ``given_keys`` or by name; a UserError if ambiguous."""
        candidates = {
            use: [given_keys[use]] if use in given_keys else self._named_text_columns(names)
            for use, names in _SIDE_NAMES.items()
        }
        if not all(candidates.values()):
            return []
        for use, columns in candidates.items():
            if len(columns) > 1:
                raise UserError(
                    f"{self.name}: each of {', '.join(map(str, columns))} may be the {use}: merge them into "
                    f"one column, or set data.{use}=..."
                )
        return [column for columns in candidates.values() for column in columns]

    def _named_text_columns(self, names: Iterable[str]) -> list[ColumnKey]:
        """The columns with one of these names that contain text in at least some rows."""
        return [
            column
            for column, values in self.values.items()
            if _last_key(column) in names and _is_prose([value for value in values if value])
        ]

    def _find_label(self) -> ColumnKey | None:
        """The label column: by its name, or the only candidate."""
        candidates = [column for column in self.label_columns if not _ID_COLUMN.search(str(column))]
        by_name = sorted(
            (column for column in candidates if _name_rank(column, _LABEL_NAMES) < len(_LABEL_NAMES)),
            key=lambda c: _name_rank(c, _LABEL_NAMES),
        )
        return by_name[0] if by_name else candidates[0] if len(candidates) == 1 else None

    def _reject_labels(self) -> None:
        """Raise a UserError for a column named as a label with scores, lists, or only one value."""
        remedy = "; for a language model of the text set only data.text=..."
        for column, values in self.values.items():
            if _last_key(column) not in _LABEL_NAMES[:2]:
                continue
            is_score = has_fraction if _holds_scores(values) else (lambda value: False)
            bad_values = [value for value in values if not is_label(value) or is_score(value)]
            if bad_values:
                task = next((task for task, holds in _LABEL_TESTS.items() if holds(values)), None)
                raise UserError(
                    f"{self.name}: {column!r} holds {format_value(bad_values[0])}; a label must be text, an "
                    f"integer, true or false{f'; task={task} learns such values' if task else ''}{remedy}"
                )
            if _is_single_class(values):
                raise UserError(
                    f"{self.name}: every text has the label {format_value(values[0])}; there is nothing to "
                    f"classify{remedy}"
                )

    def describe_ignored(self) -> list[str]:
        """Notes about possible labels that are not used: several per text, scores, and single classes."""
        candidates = [str(column) for column in self.label_columns if not _ID_COLUMN.search(str(column))]
        notes = []
        if len(candidates) > 1:
            names = candidates[:5]
            if more := len(candidates) - len(names):
                names.append(tr("{count} more", count=more))
            columns = tr("{names} and {last}", names=", ".join(names[:-1]), last=names[-1])
            notes.append(tr(SEVERAL_COLUMNS, columns=columns, first=candidates[0]))
        for column, values in self.values.items():
            lists = all(isinstance(value, list) for value in values)
            if lists and _is_categorical([item for value in values for item in value]):
                notes.append(tr(SEVERAL_LABELS, column=column))
            if _last_key(column) in (*_LABEL_NAMES, "score"):
                if _holds_scores(values):
                    example = next(filter(has_fraction, values))
                    notes.append(tr(SCORES, column=column, example=example))
                elif _is_single_class(values):
                    notes.append(tr(SINGLE_CLASS, column=column, label=format_value(values[0])))
        return notes

    def _find_text_columns(self, label: ColumnKey) -> ColumnKey | list[ColumnKey]:
        """The text column that the label refers to, or the two columns of a pair."""
        for pair in _PAIR_NAMES:
            if all(name in self.values for name in pair):
                return list(pair)
        return self._first_text_column([column for column in self.text_columns if column != label])

    def _first_text_column(self, text_columns: list[ColumnKey]) -> ColumnKey:
        if not text_columns:
            raise UserError(
                f"{self.name} has the columns {self._list_names()}: none contains text; set data.text=..."
            )
        return text_columns[0]

    def _list_names(self) -> str:
        return ", ".join(map(str, islice(self.values, 20)))


def read_columns(path: Path, table_format: Literal["tsv", "jsonl"]) -> TableColumns:
    """Read the first values of the columns of a file.

    The first row of a CSV names the columns, that of a TSV only if it looks like a header.
    """
    values: dict[ColumnKey, list[Any]] = {}
    parse_rows = _parse_tsv if table_format == "tsv" else _parse_json
    try:
        for row in parse_rows(_read_sample(path)):
            if is_csv(path) and is_header_row(row):
                continue
            for column, value in row.items():
                if value is not None:
                    values.setdefault(column, []).append(value)
            check_width(values)
    except OSError as error:
        raise UserError(f"{path.name}: {error}") from None
    if not values and table_format == "tsv":
        raise UserError(f"{path.name}: none of its first lines is a table row")
    if not values or any(isinstance(column_values[0], dict) for column_values in values.values()):
        raise no_rows_error(path)
    table = TableColumns(path.name, values)
    if is_csv(path) and (
        bad_column := next(
            (name for name in table.label_columns if str(name) in map(str, values[name])), None
        )
    ):
        raise UserError(
            f"{path.name}: the first row of a CSV must name its columns, and {bad_column!r} also "
            "occurs below it: add a header row"
        )
    return table


def _read_sample(path: Path) -> Iterator[bytes]:
    """Yield the first lines of a file that are text, fewer if they are long."""
    size = 0
    for line in islice(iter_lines(path, MAX_VALUE_BYTES), _SAMPLE_LINES):
        if line and is_text(line):
            yield line
            size += len(line)
        if size > _SAMPLE_BYTES:
            return


def _parse_tsv(sample: Iterator[bytes]) -> Iterator[dict[ColumnKey, Any]]:
    first = [line.decode().split("\t") for line in sample]
    names = first[0] if first else []
    headed = _has_header(names, first[1:])
    columns: list[ColumnKey] = [*names] if headed else [*range(max(map(len, first), default=0))]
    selected = select_columns(names) if headed else range(len(columns))
    for cells in first[headed:]:
        if not headed or cells != names:
            yield {columns[i]: cells[i] for i in selected if i < len(cells)}


def _has_header(names: list[str], rows: list[list[str]]) -> bool:
    """Whether a first line is a header.

    It is if it contains known names or language codes, or if a name is not among the labels below it. Cells
    that are empty, or equal to another, are no names.
    """
    selected = select_columns(names) if len(names) > 1 else []
    if not selected:
        return False
    if any(_last_key(names[i]) in _KNOWN_NAMES for i in selected) or all(
        _LANGUAGE_CODE.fullmatch(names[i]) for i in selected
    ):
        return True
    is_short = max(map(len, names)) <= 40
    full_rows = [row for row in rows if is_short and len(row) == len(names) and row != names]
    columns = {names[i]: [row[i] for row in full_rows] for i in selected}
    return any(_is_categorical(cells) and name not in cells for name, cells in columns.items())


def _parse_json(sample: Iterator[bytes]) -> Iterator[dict[ColumnKey, Any]]:
    for line in sample:
        try:
            row = parse_json_line(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield dict(flatten_object(row))
        elif isinstance(row, list):
            yield dict(enumerate(row))


def _last_key(column: ColumnKey) -> str:
    return str(column).lower().rpartition(".")[2]


def _name_rank(column: ColumnKey, names: tuple[str, ...]) -> int:
    """The index of a column's name in ``names``; their number if it is not among them."""
    last = _last_key(column)
    return names.index(last) if last in names else len(names)


def _is_categorical(values: list[Any]) -> bool:
    labels = [_label_name(value) for value in values if is_label(value)]
    distinct = set(labels)
    return (
        not _holds_scores(values)
        and len(labels) == len(values)
        and 2 <= len(distinct) <= max(2, len(values) // 4)
        and len(distinct) <= 200
        and max(map(len, distinct)) <= 40
    )


def _are_spans(values: list[Any]) -> bool:
    """Whether values are lists of spans, and some have one."""
    lists = [value for value in values if value]
    return bool(lists) and all(
        isinstance(value, list)
        and all(
            (isinstance(item, dict) and {"start", "end", "label"} <= item.keys())
            or (isinstance(item, list) and [*map(type, item)] == [int, int, str])
            for item in value
        )
        for value in lists
    )


def _are_answers(values: list[Any]) -> bool:
    """Whether values are answers to questions: lists of texts with their starts."""
    items = [item for value in values if isinstance(value, list) for item in value]
    return bool(items) and all(
        isinstance(item, dict) and "text" in item and {"start", "answer_start"} & item.keys()
        for item in items
    )


_LABEL_TESTS: Mapping[str, Callable[[list[Any]], bool]] = {
    "multi-label": lambda values: all(isinstance(value, list) for value in values),
    "token-classification": _are_spans,
    "question-answering": _are_answers,
    "regression": lambda values: all(map(is_number, values)),
}
"""What the values of the label column are, by task."""
_LABEL_NOUNS = {
    "classification": "has few frequent values; set the label column, ",
    "multi-label": "holds lists of labels; set ", "regression": "holds numbers; set ",
    "token-classification": "holds spans; set ", "question-answering": "holds answers; set ",
}  # fmt: skip


def _label_name(value: Any) -> str:
    """A label as JSON; 1, 1.0 and their texts are the same label."""
    if isinstance(value, str | float):
        value = normalize_label(str(value))
    return json.dumps(value)


def _holds_scores(values: list[Any]) -> bool:
    """Whether the values, or their texts, are numbers, some with a fraction."""
    return any(map(has_fraction, values)) and all(map(is_number, values))


def _is_single_class(values: list[Any]) -> bool:
    """Whether the values are one label, in at least two rows."""
    return len(values) > 1 and all(map(is_label, values)) and len(set(map(_label_name, values))) == 1


def _string_values(values: list[Any]) -> list[str]:
    """The values that are strings; empty if few values are strings, or few of them are distinct."""
    strings = [value for value in values if isinstance(value, str)]
    return [] if len(strings) < 0.9 * len(values) or 2 * len(set(strings)) < len(strings) else strings


def _is_prose(values: list[Any]) -> bool:
    """Whether the values are texts: mostly distinct strings with several words or non-ASCII letters."""
    texts = _string_values(values)
    return 2 * sum(len(text.split()) > 1 or not text.isascii() for text in texts) > len(texts)
