"""Inspect text files: infer the task and the ``data`` section from file names, columns and content."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.autoconfig.column_roles import Keys, TableColumns, read_columns
from polyhead.config.data_config import DataConfig
from polyhead.core.errors import UserError, known_names_hint, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.data.batching.mixture import Mixture
from polyhead.data.readers.conversations import open_conversations
from polyhead.data.readers.detect_language import are_unrelated, describe_mixed_languages, read_first_lines
from polyhead.data.readers.files import check_file, check_files, iter_lines
from polyhead.data.readers.labeled import (
    LabelKind,
    count_labels,
    count_multi_labels,
    describe_similar_labels,
    open_labeled,
)
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.readers.plain_text import open_text
from polyhead.data.readers.preferences import open_preferences, read_preference_texts
from polyhead.data.readers.spans import find_conll, is_squad
from polyhead.data.readers.tabular import check_unique, infer_table_format, is_blank_line
from polyhead.data.readers.text_pairs import open_text_pairs
from polyhead.train.tasks.corpora import CorpusShare
from polyhead.train.tasks.swapped_sides import check_sides

_TASKS = (
    "translation", "language-model", "masked-lm", "classification", "multi-label", "regression",
    "token-classification", "question-answering", "chat", "dpo", "kto", "embedding",
)  # fmt: skip
_LABEL_KINDS: Mapping[str, LabelKind] = {
    "classification": "class", "multi-label": "labels", "regression": "number",
    "token-classification": "spans", "question-answering": "answers",
}  # fmt: skip
_MAX_BYTES = 1 << 28  # bytes of text that are read; the rest is assumed to be similar
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")
_NOT_LANGUAGES = {"txt", "src", "tgt", "in", "out", "tok", "raw"}  # suffixes that look like a language code
_SPLIT_WORDS = {"valid": ("valid", "val", "dev", "validation"), "test": ("test",)}


@dataclass
class DataSummary:
    """Result of an inspection: the task, the inferred ``data`` section, and the amount of text."""

    task: str
    data: dict[str, Any]
    rows: int = 0  # pairs, texts, conversations or documents
    size: int = 0  # bytes of text in them
    lengths: list[int] = field(default_factory=list)  # bytes of the longer side of each row
    labels: int = 0
    is_complete: bool = True  # whether everything was read
    notes: list[str] = field(default_factory=list)  # ambiguous inferences

    @property
    def usual_length(self) -> int:
        """The length in bytes that 99 % of the rows do not exceed."""
        return int(np.quantile(self.lengths, 0.99)) if self.lengths else 0


def inspect_data(files: Sequence[str], given_keys: Keys, task: str | None = None) -> DataSummary:
    """Inspect the files; ``given_keys`` are keys of the ``data`` section set by the user.

    A mistake in files or keys is a UserError.
    """
    data = {**given_keys, "train": list(files)}
    section = DataConfig.model_validate(data)
    files_of = {split: section.split_paths(split) for split in ("train", "valid", "test")}
    paths, (checked, empty) = files_of["train"], check_files(files_of["train"])
    is_folder = any((section.root / name).is_dir() for name in files)
    table = infer_table_format(paths, section.format)
    if task is not None and task not in _TASKS:
        raise unknown_name_error("task supported by init", task, _TASKS)
    is_conll = table != "jsonl" and task in (None, "token-classification") and find_conll(checked[0])
    if is_conll:
        summary = DataSummary("token-classification", data)
    elif table == "jsonl" and task in (None, "question-answering") and is_squad(checked[0]):
        summary = DataSummary("question-answering", data)
    elif table is None:
        task = task or ("token-classification" if checked[0].suffix == ".conll" else None)
        plain, notes = ("language-model", []) if task or is_folder else _infer_plain_task(paths)
        summary = DataSummary(task or plain, data, notes=notes)
        if summary.task == "token-classification":
            raise UserError(
                f"{paths[0].name} is neither CoNLL, a word and a tag (B-PER) per line, nor JSONL with spans"
            )
        if summary.task in ("classification", "multi-label", "regression", "chat", "dpo", "kto"):
            raise UserError(
                f"task {summary.task} expects a table (TSV, CSV, JSONL or Parquet); {paths[0].name} "
                "is plain text by its name"
            )
        if summary.task in ("translation", "embedding") and len(paths) < 2:
            raise UserError(
                f"task {summary.task} expects a source and a target file, or a table; got 1: {paths[0].name}"
            )
    else:
        columns = read_columns(checked[0], table)
        _check_columns(columns, given_keys, checked[0])
        summary = DataSummary(task or columns.infer_task(given_keys), data)
        data |= {**columns.assign_roles(summary.task, given_keys), **given_keys}
        if task is None and summary.task == "language-model" and "text" not in given_keys:
            summary.notes = columns.describe_ignored()
    if empty:
        names = ", ".join(path.name for path in empty)
        summary.notes = [*summary.notes, tr("empty files, which add nothing: {names}", names=names)]
    if (
        table is None
        and not is_conll
        and summary.task != "translation"
        and (note := describe_mixed_languages(checked))
    ):
        summary.notes = [*summary.notes, note]
    if summary.task == "translation":
        data |= {**_infer_languages(section, data, table is None), **given_keys}
    _measure_rows(summary, DataConfig.model_validate(data))
    if not {"valid", "valid_fraction"} & set(given_keys):
        data |= _choose_validation(summary)
    if summary.task == "translation":
        section = DataConfig.model_validate(data)
        opened = partial(open_corpus, format=section.format, source=section.source, target=section.target)
        splits = [split for split in files_of if getattr(section, split)]
        summary.notes += check_sides(section, {split: opened(section.split_paths(split)) for split in splits})
    return summary


def group_corpora(files: Sequence[str], both_ways: bool = False) -> list[dict[str, Any]]:
    """A corpus for each pair of files of one name, if their suffixes are three languages or more.

    train.en train.de talks.en talks.zh give two corpora. With ``both_ways``, each pair is also one in the
    other direction, and two languages are enough. Empty if the files are one corpus.
    """
    stems: dict[str, list[str]] = {}
    for name in files:
        stems.setdefault(name.removesuffix(".gz").rpartition(".")[0], []).append(name)
    pairs = [tuple(names) for names in stems.values()]
    languages = {name.removesuffix(".gz").rpartition(".")[2] for name in files}
    are_languages = all(_LANGUAGE_CODE.fullmatch(code) and code not in _NOT_LANGUAGES for code in languages)
    is_paired = all(len(pair) == 2 for pair in pairs) and are_languages
    if both_ways and not is_paired:
        raise UserError("--both-ways expects pairs of files with language codes: train.en train.de")
    if not is_paired or len(languages) < 3 - both_ways:
        return []
    corpora = []
    for pair in [way for names in pairs for way in (names, names[::-1])[: 1 + both_ways]]:
        source, target = (name.removesuffix(".gz").rpartition(".")[2] for name in pair)
        corpora.append({"files": list(pair), "source_lang": source, "target_lang": target})
    names = [f"{corpus['source_lang']}-{corpus['target_lang']}" for corpus in corpora]
    for corpus, name in zip(corpora, names, strict=True):
        stem = Path(corpus["files"][0].removesuffix(".gz")).stem
        corpus["name"] = name if names.count(name) == 1 else f"{stem}.{name}"
    return [{"name": corpus.pop("name")} | corpus for corpus in corpora]


def inspect_corpora(corpora: Sequence[dict[str, Any]], given_keys: Keys) -> DataSummary:
    """Inspect parallel corpora that one model learns; validation is in files next to those of each."""
    summaries = [inspect_data(corpus["files"], given_keys, "translation") for corpus in corpora]
    total = DataSummary("translation", {**given_keys, "train": list(corpora)})
    for summary in summaries:
        total.rows, total.size = total.rows + summary.rows, total.size + summary.size
        total.lengths += summary.lengths
        total.is_complete &= summary.is_complete
        total.notes += [note for note in summary.notes if note not in total.notes]
    for split in ("valid", "test"):
        files = [summary.data.get(split) for summary in summaries]
        if all(files) and split not in given_keys:
            total.data[split] = [
                {"name": corpus["name"], "files": part} for corpus, part in zip(corpora, files, strict=True)
            ]
    if not {"valid", "valid_fraction"} & set(total.data):
        if len({frozenset(corpus["files"]) for corpus in corpora}) < len(corpora):
            raise UserError(
                "both directions of a corpus need validation files of its name, such as valid.en next to "
                "train.en: a fraction held out of one direction would be trained on in the other"
            )
        fractions = [summary.data.get("valid_fraction", 0.1) for summary in summaries]
        total.data["valid_fraction"] = max(fractions)
    sizes = [summary.rows for summary in summaries]
    mixture = Mixture((1.0,) * len(sizes), given_keys.get("temperature", 1), 0)
    for corpus, size, drawn in zip(corpora, sizes, mixture.count_texts(sizes), strict=True):
        share = CorpusShare(corpus["name"], size, size, drawn / sum(sizes), drawn / size)
        total.notes.append(tr("corpus {name}: {share}", name=share.name, share=share.describe()))
    return total


def _check_columns(columns: TableColumns, given_keys: Keys, path: Path) -> None:
    """Raise a UserError if a named column does not exist or is ambiguous; nested keys are checked later."""
    names = [name for name in columns.values if isinstance(name, str)]
    for role in ("source", "target", "text", "label"):
        role_columns = given_keys.get(role, [])
        role_columns = role_columns if isinstance(role_columns, list | tuple) else [role_columns]
        check_unique(path, role_columns)
        for column in role_columns:
            if names and isinstance(column, str) and "." not in column and column not in names:
                raise UserError(
                    f"data.{role}: {columns.name} has no column {column!r}{known_names_hint(column, names)}"
                )


def _infer_plain_task(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """(task, notes) of plain text files.

    Two files with the same number of lines, or files with names that differ only in one of two language
    suffixes, are a translation corpus.
    """
    parts = [path.name.removesuffix(".gz").rpartition(".") for path in paths]
    stems = {end: {stem for stem, _, other in parts if other == end} for *_, end in parts}
    if (
        len(stems) == 2
        and set.intersection(*stems.values())
        and all(_LANGUAGE_CODE.fullmatch(end) and end != "txt" for end in stems)
    ):
        return "translation", []
    if len(paths) != 2:
        return "language-model", []
    (line_count, ends_blank), (other_count, other_ends_blank) = map(_count_lines, paths)
    # a blank line at the end of only one file is ignored
    extra_lines = {0, *([1] if ends_blank else []), *([-1] if other_ends_blank else [])}
    if min(line_count, other_count) > 1 and line_count - other_count in extra_lines:
        return "translation", []
    if are_unrelated(*map(read_first_lines, paths)):
        raise UserError(
            f"{paths[0].name} has {line_count:,} lines and {paths[1].name} {other_count:,}, in different "
            "languages: line n of the target must translate line n of the source, so both must have the "
            "same number of lines; task=language-model trains on both as plain text"
        )
    note = tr(
        "read as plain text for one language model: {one} has {lines} and {other} {more}; the two sides of "
        "translations must have equally many, at least two",
        one=paths[0].name,
        lines=_format_lines(line_count),
        other=paths[1].name,
        more=_format_lines(other_count),
    )
    return "language-model", [note]


def _count_lines(path: Path) -> tuple[int, bool]:
    """The number of lines of a file, and whether the last one is blank."""
    count, line = 0, None
    for count, line in enumerate(iter_lines(path), 1):  # noqa: B007
        pass
    return count, line is not None and is_blank_line(line)


def _format_lines(count: int) -> str:
    return tr("{count:,} line" if count == 1 else "{count:,} lines", count=count)


def _infer_languages(section: DataConfig, data: Keys, is_parallel: bool) -> dict[str, str]:
    """The languages of the two sides, if the file suffixes or column names are language codes."""
    if is_parallel:
        paths = section.split_paths("train")
        ends = list(dict.fromkeys(path.name.removesuffix(".gz").rpartition(".")[2] for path in paths))
    else:
        ends = [str(data[side]).rpartition(".")[2] for side in ("source", "target")]
    are_languages = (
        all(_LANGUAGE_CODE.fullmatch(end) and end not in _NOT_LANGUAGES for end in ends)
        and len(ends) == len(set(ends)) == 2
    )
    return dict(zip(("source_lang", "target_lang"), ends, strict=True)) if are_languages else {}


def _measure_rows(summary: DataSummary, data: DataConfig) -> None:
    """Read the rows and their lengths, in the same way as training."""
    paths = data.split_paths("train")
    for size in _iter_row_sizes(summary, data, paths):
        summary.rows += 1
        summary.lengths.append(max(size))
        summary.size += sum(size)
        if summary.size > _MAX_BYTES:
            summary.is_complete = False
            break
    if not summary.is_complete:
        summary.size = max(summary.size, sum(path.stat().st_size for path in paths))


def _iter_row_sizes(
    summary: DataSummary, data: DataConfig, paths: Sequence[Path]
) -> Iterator[tuple[int, ...]]:
    """Yield the bytes of every text of each row."""
    if summary.task == "translation":
        corpus = open_corpus(paths, format=data.format, source=data.source, target=data.target)
        for pair in corpus.iter_pairs():
            yield _byte_lengths(pair.source, pair.target)
    elif summary.task in _LABEL_KINDS:
        kind = _LABEL_KINDS[summary.task]
        labeled_files = open_labeled(paths, format=data.format, text=data.text, label=data.label, kind=kind)
        if kind == "class":
            counts = count_labels(labeled_files)
            summary.notes = [*summary.notes, *filter(None, [describe_similar_labels(counts)])]
        else:
            counts = count_multi_labels(labeled_files) if kind in ("labels", "spans") else {}
        summary.labels = len(counts)
        for example in labeled_files.iter_examples():
            yield _byte_lengths(*example.texts)
    elif summary.task == "chat":
        conversations = open_conversations(paths)
        for _, row in conversations.read():
            yield (sum(_byte_lengths(*(message.content for message in row.messages))),)
    elif summary.task == "embedding":
        columns: dict[str, Any] = {"format": data.format, "source": data.source, "target": data.target}
        for _, texts in open_text_pairs(paths, **columns).read():
            yield _byte_lengths(*texts.texts)
    elif summary.task in ("dpo", "kto"):
        yield from map(_byte_lengths, read_preference_texts(open_preferences(paths)))
    else:
        text = open_text(paths, data.document_separator, columns=data.text, format=data.format)
        size = 0
        for piece in text.read_chunks():
            size += len(piece.text.encode())
            if piece.is_last or size > _MAX_BYTES:
                yield (size,)
                size = 0


def _byte_lengths(*texts: str) -> tuple[int, ...]:
    return tuple(len(text.encode()) for text in texts)


def _choose_validation(summary: DataSummary) -> dict[str, Any]:
    """Choose validation and test data: files next to the training files with such names, else a fraction."""
    names: list[str] = summary.data["train"]
    splits: dict[str, Any] = {}
    for split, words in _SPLIT_WORDS.items():
        for word in words:
            parts = (name.rpartition("/") for name in names)
            candidates = [folder + slash + base.replace("train", word) for folder, slash, base in parts]
            is_renamed = all(other != name for other, name in zip(candidates, names, strict=True))
            unpacked = [name.removesuffix(".gz") for name in candidates]
            if existing := next(
                (
                    candidate
                    for candidate in (candidates, unpacked)
                    if is_renamed and _is_readable(summary, candidate)
                ),
                None,
            ):
                splits[split] = existing
                break
    if "valid" not in splits:
        row_estimate = (
            summary.rows if summary.task != "language-model" else max(summary.rows, summary.size // 1000)
        )
        splits["valid_fraction"] = next(
            (share for share in (0.01, 0.02, 0.05, 0.1) if row_estimate * share >= 500), 0.1
        )
    return splits


def _is_readable(summary: DataSummary, names: Sequence[str]) -> bool:
    """Whether files of these names exist and can be read like the training files."""
    try:
        data = DataConfig.model_validate({**summary.data, "train": list(names)})
        paths = [check_file(path) for path in data.split_paths("train")]
        next(iter(_iter_row_sizes(DataSummary(summary.task, {}), data, paths)))
    except (UserError, StopIteration):
        return False
    return True
