"""The columns of a table, and what each of them is for: told by their names, else by what stands in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from polyhead.core.i18n import tr
from polyhead.data.columns import Column, no_rows, read_json
from polyhead.data.comma import is_csv
from polyhead.data.conversations import KEYS
from polyhead.data.files import is_text, lines
from polyhead.data.labelled import is_label
from polyhead.data.text import LONGEST
from polyhead.errors import UserError, show

CODE = re.compile("[a-z]{2}")  # of a language, at the head of its column
ID = re.compile(r"(^|[\W_\d])(id|ID|Id)$|[a-z]I[dD]$", re.ASCII)  # what numbers things, not "paid"
SEVERAL_COLUMNS = (
    "{columns} may each be a label, and a text has one: data.label={first} makes a classifier of that."
)
SEVERAL_LABELS = "{column} has several labels of a text, and one is learned: write each into a column of its own, yes or no."
SAMPLE = 2000  # lines that are looked at
MOST = 1 << 25  # bytes of them
SIDES = {
    "source": ("source", "src", "input", "question", "prompt", "instruction", "context"),
    "target": ("target", "tgt", "output", "answer", "completion"),
}
LABELS = ("label", "labels", "class", "category", "topic", "sentiment", "intent", "stars", "rating", "y")
TEXTS = ("text", "sentence", "content", "review", "body", "document", "story", "article", "question", "title")
PAIRS = (("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text_a", "text_b"),
         ("query", "passage"), ("question", "sentence"))  # fmt: skip
KNOWN = {
    *SIDES["source"],
    *SIDES["target"],
    *LABELS,
    *TEXTS,
    *(name for pair in PAIRS for name in pair),
    "id",
    "idx",
    "index",
}


@dataclass(frozen=True)
class Columns:
    """The first values of every column of a table."""

    name: str  # of the file
    values: Mapping[Column, list[Any]]

    @property
    def labels(self) -> list[Column]:
        """Those that may be labels: few different short values, each of them often."""
        return [column for column, values in self.values.items() if _few(values)]

    @property
    def texts(self) -> list[Column]:
        """Those that hold text, the one that names most texts first, then the longest."""
        found = [
            column
            for column, values in self.values.items()
            if _prose(values) or (_last(column) == TEXTS[0] and _strings(values))
        ]
        length = {column: sum(map(len, self.values[column])) for column in found}
        return sorted(found, key=lambda column: (_rank(column, TEXTS), -length[column]))

    def task(self, given: Mapping[str, Any]) -> str:
        """What can be learned from them, those counted in that are ``given`` a role already."""
        if any(column in KEYS for column in self.values):
            return "chat"
        if "label" in given:
            return "classification"
        if SIDES.keys() & given.keys() or self._sides(given):
            return "translation"
        label = self._label()
        texts = [column for column in self.texts if column != label]
        if label is not None and (texts or "text" in given):
            return "classification"
        if label is None and "text" not in given:
            self._refuse_scores()
        if len(texts) == 1 or "text" in given or (texts and _rank(texts[0], TEXTS) < len(TEXTS)):
            return "language-model"
        if len(texts) == 2:
            return "translation"
        raise UserError(
            f"{self.name} has the columns {self._shown()}: it is not clear which are meant; name them, e.g. "
            "data.text=... data.label=..., or data.source=... data.target=..., or data.text=... alone for a language model"
        )

    def roles(self, task: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of the section ``data`` that say which column is what."""
        if task == "chat":
            return {}
        if task == "translation":
            if sides := self._sides(given):
                return dict(zip(SIDES, sides, strict=True))
            unsaid = [use for use in SIDES if use not in given]
            texts = [
                column for column in self.values if column in self.texts and column not in given.values()
            ]
            if len(texts) != len(unsaid):
                raise UserError(
                    f"{self.name} has the columns {self._shown()}: say which are the two sides, data.source=... data.target=..."
                )
            return dict(zip(unsaid, texts, strict=True))
        if task == "classification":
            label = given.get("label", self._label())
            if label is None:
                raise UserError(
                    f"{self.name} has the columns {self._shown()}: none has few values that come often; say which is the label, data.label=..."
                )
            return {"text": given.get("text", self._about(label)), "label": label}
        return {"text": given.get("text", self._one(self.texts))}

    def _sides(self, given: Mapping[str, Any]) -> list[Column]:
        """The two columns that are ``given`` or whose names say source and target; an error if several say the same."""
        found = {use: [given[use]] if use in given else self._called(names) for use, names in SIDES.items()}
        if not all(found.values()):
            return []
        for use, columns in found.items():
            if len(columns) > 1:
                raise UserError(
                    f"{self.name}: each of {', '.join(map(str, columns))} may be the {use}: make one column of them, "
                    f"or say which it is, data.{use}=..."
                )
        return [column for columns in found.values() for column in columns]

    def _called(self, names: Iterable[str]) -> list[Column]:
        """The columns of such names that hold text, in some rows at least."""
        return [
            column
            for column, values in self.values.items()
            if _last(column) in names and _prose([value for value in values if value])
        ]

    def _label(self) -> Column | None:
        """The column that is a label by its name, or the only one that can be."""
        able = [column for column in self.labels if not ID.search(str(column))]
        named = sorted(
            (column for column in able if _rank(column, LABELS) < len(LABELS)), key=lambda c: _rank(c, LABELS)
        )
        return named[0] if named else able[0] if len(able) == 1 else None

    def _refuse_scores(self) -> None:
        """A column that is called a label but holds none, such as scores or lists of labels, is not passed over."""
        for column, values in self.values.items():
            wrong = [value for value in values if not is_label(value)]
            if _last(column) in LABELS[:2] and wrong:
                raise UserError(
                    f"{self.name}: {column!r} holds {show(wrong[0])}, and a label is text, a whole number, true or false; "
                    "for a language model of the text alone name it, data.text=..."
                )

    def passed_over(self) -> list[str]:
        """What of them could be answers, and is not learned: one label a text is, so of several nobody can say which is meant."""
        able = [str(column) for column in self.labels if not ID.search(str(column))]
        notes = []
        if len(able) > 1:
            notes.append(tr(SEVERAL_COLUMNS, columns=_listed(able), first=able[0]))
        for column, values in self.values.items():
            lists = all(isinstance(value, list) for value in values)
            if lists and _few([one for value in values for one in value]):
                notes.append(tr(SEVERAL_LABELS, column=column))
        return notes

    def _about(self, label: Column) -> Column | list[Column]:
        """The column of the text that the label is about, or the two."""
        for pair in PAIRS:
            if all(name in self.values for name in pair):
                return list(pair)
        return self._one([column for column in self.texts if column != label])

    def _one(self, texts: list[Column]) -> Column:
        if not texts:
            raise UserError(
                f"{self.name} has the columns {self._shown()}: none holds text; say which does, data.text=..."
            )
        return texts[0]

    def _shown(self) -> str:
        return ", ".join(map(str, islice(self.values, 20)))


def columns_of(path: Path, table: Literal["tsv", "jsonl"]) -> Columns:
    """The first values of the columns of a file; the first row of a CSV names them, that of a TSV if it looks like names."""
    values: dict[Column, list[Any]] = {}
    for row in _tsv(_sample(path)) if table == "tsv" else _json(_sample(path)):
        for column, value in row.items():
            if value is not None:
                values.setdefault(column, []).append(value)
    if not values and table == "tsv":
        raise UserError(f"{path.name}: none of its first lines is a row of a table")
    if not values or any(isinstance(found[0], dict) for found in values.values()):
        raise no_rows(path)
    found = Columns(path.name, values)
    if is_csv(path) and (
        data := next((name for name in found.labels if str(name) in map(str, values[name])), None)
    ):
        raise UserError(
            f"{path.name}: the first row of a CSV names its columns, and {data!r} stands below it too: put a row of names above"
        )
    return found


def _sample(path: Path) -> Iterator[bytes]:
    """The first lines of a file that are text, not many where they are long."""
    size = 0
    for line in islice(lines(path, LONGEST), SAMPLE):
        if line and is_text(line):
            yield line
            size += len(line)
        if size > MOST:
            return


def _tsv(sample: Iterator[bytes]) -> Iterator[dict[Column, Any]]:
    first = [line.decode().split("\t") for line in sample]
    names = first[0] if first else []
    headed = _headed(names, first[1:])
    columns: list[Column] = [*names] if headed else [*range(max(map(len, first), default=0))]
    for cells in first[headed:]:
        yield dict(zip(columns, cells, strict=False))


def _headed(names: list[str], rows: list[list[str]]) -> bool:
    """Whether a first line is a header: it has names that are known or codes of languages, or what is no label stands on labels."""
    if not len(set(names)) == len(names) > 1 or not all(names):
        return False
    if any(_last(name) in KNOWN for name in names) or all(CODE.fullmatch(name) for name in names):
        return True
    whole = [row for row in rows if len(row) == len(names)] if max(map(len, names)) <= 40 else []
    columns = ([row[i] for row in whole] for i in range(len(names)))
    return any(_few(cells) and name not in cells for name, cells in zip(names, columns, strict=True))


def _json(sample: Iterator[bytes]) -> Iterator[dict[Column, Any]]:
    for line in sample:
        try:
            row = read_json(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield dict(_flat(row))
        elif isinstance(row, list):
            yield dict(enumerate(row))


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of an object, and of objects in it as dotted paths."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", one) for inner, one in _flat(value))
        else:
            yield key, value


def _listed(names: list[str]) -> str:
    """The first few of them, with an "and"."""
    shown = names[:5] + ([tr("{count} more", count=len(names) - 5)] if len(names) > 5 else [])
    return tr("{names} and {last}", names=", ".join(shown[:-1]), last=shown[-1])


def _last(column: Column) -> str:
    return str(column).lower().rpartition(".")[2]


def _rank(column: Column, names: tuple[str, ...]) -> int:
    """The place of a column's name among those; behind them where it is none."""
    last = _last(column)
    return names.index(last) if last in names else len(names)


def _few(values: list[Any]) -> bool:
    named = [json.dumps(value) for value in values if is_label(value)]
    different = set(named)
    return (
        len(named) == len(values)
        and 2 <= len(different) <= max(2, len(values) // 4)
        and len(different) <= 200
        and max(map(len, different)) <= 40
    )


def _strings(values: list[Any]) -> list[str]:
    """Those that are strings; none of them where these are few, or few different ones."""
    found = [value for value in values if isinstance(value, str)]
    return [] if len(found) < 0.9 * len(values) or 2 * len(set(found)) < len(found) else found


def _prose(values: list[Any]) -> bool:
    """Whether they are texts: strings, mostly different, of more than a word or of letters that stand without blanks."""
    texts = _strings(values)
    return 2 * sum(len(text.split()) > 1 or not text.isascii() for text in texts) > len(texts)
