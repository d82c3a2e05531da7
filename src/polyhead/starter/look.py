"""What text files hold, and what can be learned from them: told by their names, their columns and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.core.i18n import tr
from polyhead.data.conversations import ConversationReport, open_conversations
from polyhead.data.corpus import CorpusReport, open_corpus
from polyhead.data.files import check_file, lines
from polyhead.data.labelled import LabelledReport, labels_of, open_labelled
from polyhead.data.languages import are_foreign, first_lines
from polyhead.data.text import TextReport, open_text, table_of
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError, among, unknown
from polyhead.starter.columns import Columns, columns_of
from polyhead.train.tasks.swapped import check_sides

TASKS = ("translation", "language-model", "masked-lm", "classification", "chat")
MOST = 1 << 28  # bytes of text that are read; of more the rest is taken to be alike
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")
NONE = {"txt", "src", "tgt", "in", "out", "tok", "raw"}  # what looks like a language
SPLITS = {"valid": ("valid", "val", "dev", "validation"), "test": ("test",)}


@dataclass
class Look:
    """What was found: the task, the section ``data`` of a recipe as far as the files tell it, and how much text there is."""

    task: str
    data: dict[str, Any]
    rows: int = 0  # pairs, texts, conversations or documents
    size: int = 0  # bytes of text in them
    lengths: list[int] = field(default_factory=list)  # bytes of each row, of its longer side
    labels: int = 0
    whole: bool = True  # whether everything was read
    notes: list[str] = field(default_factory=list)  # what could be meant otherwise

    def long(self, share: float = 0.99) -> int:
        """Bytes that such a share of the rows does not exceed."""
        return int(np.quantile(self.lengths, share)) if self.lengths else 0


def look(files: Sequence[str], given: Mapping[str, Any], task: str | None = None) -> Look:
    """Read the files, as far as ``given``, keys of the section ``data``, does not say already how; a mistake is a UserError."""
    data = {**given, "train": list(files)}
    section = DataConfig.model_validate(data)
    files_of = {split: list(map(check_file, section.paths(split))) for split in ("train", "valid", "test")}
    paths = files_of["train"]
    table = table_of(paths, section.format)
    if task is not None and task not in TASKS:
        raise unknown("task that recipes are written for", task, TASKS)
    if table is None:
        plain, notes = ("", []) if task else _task_of_plain(paths)
        found = Look(task or plain, data, notes=notes)
        if found.task in ("classification", "chat"):
            raise UserError(
                f"task {found.task} wants a table, TSV, CSV, JSONL or Parquet; {paths[0].name} is plain text by its name"
            )
        if found.task == "translation" and len(paths) != 2:
            raise UserError(
                f"task translation wants a source and a target file, or a table; got {len(paths)}: {', '.join(path.name for path in paths)}"
            )
    else:
        columns = columns_of(paths[0], table)
        _check_columns(columns, given)
        found = Look(task or columns.task(given), data)
        data |= {key: value for key, value in columns.roles(found.task, given).items() if key not in given}
        if task is None and found.task == "language-model" and "text" not in given:
            found.notes = columns.passed_over()
    if found.task == "translation":
        data |= {
            key: code for key, code in _languages(section, data, table is None).items() if key not in given
        }
    _measure(found, DataConfig.model_validate(data))
    data |= {
        key: value for key, value in _held_out(found).items() if not {"valid", "valid_share"} & set(given)
    }
    if found.task == "translation":
        found.notes += _check_sides(DataConfig.model_validate(data))
    return found


def _check_sides(data: DataConfig) -> list[str]:
    """What looks like swapped sides; a UserError where they are certainly swapped."""
    splits = [split for split in ("train", "valid", "test") if getattr(data, split)]
    opened = partial(open_corpus, format=data.format, source=data.source, target=data.target)
    return check_sides(data, {split: opened(data.paths(split)) for split in splits})


def _check_columns(columns: Columns, given: Mapping[str, Any]) -> None:
    """A UserError for a column that is given a role by its name and is not there; keys inside of others are found later."""
    names = [name for name in columns.values if isinstance(name, str)]
    for role in ("source", "target", "text", "label"):
        wanted = given.get(role, [])
        for column in wanted if isinstance(wanted, list | tuple) else [wanted]:
            if names and isinstance(column, str) and "." not in column and column not in names:
                raise UserError(f"data.{role}: {columns.name} has no column {column!r}{among(column, names)}")


def _task_of_plain(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """Two files of as many lines, or of one name but for its end, are the sides of a translation; what speaks against it."""
    if len(paths) != 2:
        return "language-model", []
    a, b = (path.name.removesuffix(".gz").split(".") for path in paths)
    if a[:-1] == b[:-1] and all(LANGUAGE.fullmatch(parts[-1]) and parts[-1] != "txt" for parts in (a, b)):
        return "translation", []
    one, other = (sum(1 for _ in lines(path)) for path in paths)
    if one == other > 1:
        return "translation", []
    if are_foreign(*map(first_lines, paths)):
        raise UserError(
            f"{paths[0].name} has {one:,} lines and {paths[1].name} {other:,}, and the two are of different languages: "
            "line n of a translation is that of line n of its source, so give files of as many lines; "
            "task=language-model learns from both as plain text"
        )
    note = tr(
        "taken for plain text of one language model: {one} has {lines} and {other} {more}, and two sides of translations "
        "have as many, two or more",
        one=paths[0].name,
        lines=_lines(one),
        other=paths[1].name,
        more=_lines(other),
    )
    return "language-model", [note]


def _lines(count: int) -> str:
    return tr("{count:,} line" if count == 1 else "{count:,} lines", count=count)


def _languages(section: DataConfig, data: Mapping[str, Any], parallel: bool) -> dict[str, str]:
    """The languages of the two sides, where the names of files or columns are codes of some."""
    if parallel:
        ends = [path.name.removesuffix(".gz").rpartition(".")[2] for path in section.paths("train")]
    else:
        ends = [str(data[side]).rpartition(".")[2] for side in ("source", "target")]
    told = all(LANGUAGE.fullmatch(end) and end not in NONE for end in ends) and len(set(ends)) == 2
    return dict(zip(("source_lang", "target_lang"), ends, strict=True)) if told else {}


def _measure(found: Look, data: DataConfig) -> None:
    """Read the rows and their lengths, as they will be read for training."""
    paths = data.paths("train")
    for size in _sizes(found, data, paths):
        found.rows += 1
        found.lengths.append(max(size))
        found.size += sum(size)
        if found.size > MOST:
            found.whole = False
            break
    if not found.whole:
        found.size = max(found.size, sum(path.stat().st_size for path in paths))


def _sizes(found: Look, data: DataConfig, paths: Sequence[Path]) -> Iterator[tuple[int, ...]]:
    """The bytes of every text of every row."""
    if found.task == "translation":
        corpus = open_corpus(paths, format=data.format, source=data.source, target=data.target)
        for pair in corpus.pairs(CorpusReport(corpus.where)):
            yield _bytes(pair.source, pair.target)
    elif found.task == "classification":
        labelled = open_labelled(paths, format=data.format, text=data.text, label=data.label)
        found.labels = len(labels_of(labelled))
        for example in labelled.examples(LabelledReport(labelled.where)):
            yield _bytes(*example.texts)
    elif found.task == "chat":
        talks = open_conversations(paths)
        for talk in talks.read(ConversationReport(talks.where)):
            yield (sum(_bytes(*(message.content for message in talk.messages))),)
    else:
        text = open_text(paths, data.documents, columns=data.text, format=data.format)
        held = 0
        for piece in text.pieces(TextReport(text.where)):
            held += len(piece.text.encode())
            if piece.last or held > MOST:
                yield (held,)
                held = 0


def _bytes(*texts: str) -> tuple[int, ...]:
    return tuple(len(text.encode()) for text in texts)


def _held_out(found: Look) -> dict[str, Any]:
    """What to measure on: files beside those of training that are called so, else a share of the training text."""
    names: list[str] = found.data["train"]
    beside: dict[str, Any] = {}
    for split, words in SPLITS.items():
        for word in words:
            called = [re.sub(r"train(?=[^/]*$)", word, name) for name in names]
            renamed = all(other != name for other, name in zip(called, names, strict=True))
            unpacked = [name.removesuffix(".gz") for name in called]
            if fitting := next((one for one in (called, unpacked) if renamed and _fit(found, one)), None):
                beside[split] = fitting
                break
    if "valid" not in beside:
        most = found.rows if found.task != "language-model" else max(found.rows, found.size // 1000)
        beside["valid_share"] = next((share for share in (0.01, 0.02, 0.05, 0.1) if most * share >= 500), 0.1)
    return beside


def _fit(found: Look, names: Sequence[str]) -> bool:
    """Whether files of these names are there and can be read like those of training."""
    try:
        data = DataConfig.model_validate({**found.data, "train": list(names)})
        other = Look(found.task, {})
        next(iter(_sizes(other, data, [check_file(path) for path in data.paths("train")])))
    except (UserError, StopIteration):
        return False
    return True
