"""Read labeled texts, single or in pairs, from TSV or JSONL.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.core.i18n import Translate, tr
from polyhead.data.readers.files import check_files
from polyhead.data.readers.rows import ReadReport, Rows, read_limited
from polyhead.data.readers.spans import (
    TextSpan,
    is_squad,
    list_span_labels,
    parse_answers,
    parse_spans,
    read_conll,
    read_squad,
)
from polyhead.data.readers.tabular import ColumnKey, infer_table_format, name_text_columns
from polyhead.tokenizers.scripts import fold_text

_NUMBER = re.compile(r"[-+]?[0-9]{0,15}\.?[0-9]{1,30}")
_INTEGER_WITH_FRACTION = re.compile(r"-?[0-9]{1,15}\.0+")
# Cyrillic and Greek letters and the long dash, and what they look like
_LOOKALIKES = str.maketrans(
    "АВЕКМНОРСТУХІЈЅаеорсухіјѕԁΑΒΕΖΗΙΚΜΝΟΡΤΥΧονα—", "ABEKMHOPCTYXIJSaeopcyxijsdABEZHIKMNOPTYXova-"
)
_FEW_TEXTS = 20  # with more texts than this, at most half as many different labels are accepted


LabelKind = Literal["class", "labels", "number", "spans", "answers"]
"""What a text has: one label, any number of labels, a number, or labeled spans; a question and a context have
answers.
"""


class LabeledExample(NamedTuple):
    """One text, or a pair of texts, and its label."""

    line: int
    texts: tuple[str, ...]
    label: str  # several are joined
    location: str  # line number; with several files also the name
    labels: tuple[str, ...] = ()  # of kind "labels"
    number: float = 0.0  # of kind "number"
    spans: tuple[TextSpan, ...] = ()  # of kinds "spans" and "answers", in characters


class LabeledReport(ReadReport):
    """Read counts of labeled texts; a text with more tokens than fit is used, and cut."""

    unit = "text"
    counts = "{where}: {kept:,} of {read:,} texts"


@dataclass(frozen=True)
class LabeledFiles(Rows[tuple[Any, ...]]):
    """Files of labeled texts; all lines of a text (of a pair, its first text) are in the same split."""

    report_type = LabeledReport
    kind: LabelKind = "class"

    def read_file(self, path: Path) -> Iterator[tuple[int, Any]]:
        return _FORMATS.get(self.format, super().read_file)(path)

    def get_split_text(self, row: Any) -> str | None:
        """The text that decides the split of a row: of a question, its context."""
        return super().get_split_text(row[1:] if self.kind == "answers" else row)

    def iter_examples(
        self, report: LabeledReport | None = None, labels: Sequence[str] | None = None
    ) -> Iterator[LabeledExample]:
        """Yield the usable examples, only those with one of ``labels`` if given, which are tags for spans.

        The others are counted in the report. Raises a UserError if none is usable.
        """
        report = report or LabeledReport(self.source_label)
        # 1.0 is the label 1, unless the model has a label of that name
        if labels is not None and self.kind == "spans":
            labels = list_span_labels(labels)
        known_labels = None if labels is None else {normalize_label(label): label for label in labels}
        for place, line, row in self.read_rows(report):
            report.fractions += has_fraction(row[-1])
            example = _parse_row(self.kind, line, row, place)
            if isinstance(example, str):
                if example == "malformed":
                    _, expected = _PARSERS[self.kind]
                    example += f": label {format_value(row[-1])}, expected {expected}"
                report.count_problem(example, place)
                continue
            if known_labels is not None:
                names = (example.label,) if self.kind == "class" else example.labels
                if unknown := [name for name in names if name not in known_labels]:
                    hint = did_you_mean(unknown[0], known_labels.values()).replace("; ", ", ", 1)
                    report.count_problem(f"unknown_label: {unknown[0]!r}{hint}", place)
                    continue
                names = tuple(known_labels[name] for name in names)
                if self.kind == "class":
                    example = example._replace(label=names[0])
                else:
                    example = example._replace(labels=names)
            report.used += 1
            yield example
        among = (
            f"; the labels are {', '.join(sorted(known_labels.values())[:20])}"
            if known_labels and report.unknown_label
            else ""
        )
        report.check_usable(among)


def open_labeled(
    files: Sequence[str | Path],
    *,
    format: str = "auto",
    text: Sequence[ColumnKey] = ("text",),
    label: ColumnKey = "label",
    validation_fraction: float = 0.0,
    is_validation: bool = False,
    kind: LabelKind = "class",
) -> LabeledFiles:
    """Open labeled files: infer their format and check the columns.

    Mistakes in the names raise a UserError here.
    """
    if not files:
        raise UserError("no files: expected one or several TSV or JSONL files")
    paths, empty = check_files(map(Path, files))
    if format == "parallel":
        raise UserError("format 'parallel' has no labels: labelled texts must be tsv or jsonl")
    table_format: Any = infer_table_format(paths, format)
    if kind == "spans" and table_format != "jsonl":
        table_format = "conll"
    elif kind == "answers" and all(map(is_squad, paths)):
        table_format = "squad"
    if table_format is None:
        raise UserError(
            f"cannot detect the format of {paths[0].name}: name it .tsv, .csv or .jsonl, or "
            "set data.format in the recipe"
        )
    columns = name_text_columns(text) | {"label": label}
    labeled_files = LabeledFiles(
        paths, table_format, columns, validation_fraction, is_validation, empty, kind
    )
    if table_format not in _FORMATS:  # which have no columns
        labeled_files.check_columns()
    return labeled_files


def count_labels(labeled_files: LabeledFiles) -> dict[str, int]:
    """How many texts have each label; the labels are sorted.

    A UserError if there is only one, or one text for each, or more than one for every two texts, or if they
    are scores: numbers with fractions.
    """
    report = LabeledReport(labeled_files.source_label)
    labels = Counter(example.label for example in labeled_files.iter_examples(report))
    if report.fractions and all(map(is_number, labels)):
        raise UserError(
            f"{labeled_files.source_label}: the labels are scores, {report.fractions:,} of "
            f"{report.total:,} with a fraction; a classifier needs classes: round them to integers, or write "
            "them as words; task regression learns numbers"
        )
    if len(labels) < 2:
        raise UserError(
            f"{labeled_files.source_label}: every text has the label {next(iter(labels))!r}; there is "
            "nothing to classify"
        )
    if report.used == len(labels) <= _FEW_TEXTS:
        raise UserError(
            f"{labeled_files.source_label}: {report.used} texts, each with a label of its own, are too few: "
            "a classifier learns from several texts of each label"
        )
    if report.used > _FEW_TEXTS and 2 * len(labels) > report.used:
        raise UserError(
            f"{labeled_files.source_label}: {len(labels):,} different labels for {report.used:,} texts, "
            f"such as {min(labels)[:40]!r}; is {labeled_files.columns_by_role['label']!r} the column of the "
            "label?"
        )
    return {label: labels[label] for label in sorted(labels)}


def count_multi_labels(labeled_files: LabeledFiles) -> dict[str, int]:
    """How many texts, or spans, have each of several labels, sorted. A UserError if there is none."""
    labels = Counter(label for example in labeled_files.iter_examples() for label in example.labels)
    if not labels:
        noun = "span" if labeled_files.kind == "spans" else "label"
        raise UserError(f"{labeled_files.source_label}: no text has a {noun}; there is nothing to learn")
    return {label: labels[label] for label in sorted(labels)}


def describe_similar_labels(counts: Mapping[str, int], tr: Translate = tr) -> str:
    """A warning if labels look alike or are one number; "" if none do."""
    groups: dict[str, list[str]] = {}
    for label in counts:
        key = fold_text(unicodedata.normalize("NFKC", label).translate(_LOOKALIKES))
        key = str(float(key) + 0.0) if is_number(key) else "".join(c for c in key if not is_blank(c))
        groups.setdefault(key, []).append(f"{label!r} ({counts[label]:,})")
    similar = [", ".join(names) for names in groups.values() if len(names) > 1]
    if not similar:
        return ""
    return tr(
        "labels that look the same are separate classes: {labels}",
        labels="; ".join(similar[:5]),
    )


def read_labeled_texts(labeled_files: LabeledFiles) -> Iterator[str]:
    """Yield every text, for training a tokenizer."""
    for example in labeled_files.iter_examples():
        yield from example.texts


def read_labeled(
    labeled_files: LabeledFiles, labels: Sequence[str] | None = None, limit: int | None = None
) -> tuple[list[LabeledExample], LabeledReport]:
    """(usable examples, report)."""
    report = LabeledReport(labeled_files.source_label)
    return read_limited(labeled_files.iter_examples(report, labels), report, limit), report


def _parse_row(kind: LabelKind, line: int, row: tuple[Any, ...], location: str) -> LabeledExample | str:
    """The texts and the label of a line, or the kind of problem."""
    *texts, value = row
    parse, _ = _PARSERS[kind]
    fields = parse(value, texts)
    # a bad class is reported, even if a text is blank
    if any(map(is_blank, texts)) and not (kind == "class" and isinstance(fields, str)):
        return "empty"
    if isinstance(fields, str):
        return fields
    return LabeledExample(line, tuple(texts), location=location, **fields)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and is_blank(value))


def _parse_class(value: Any, _: Sequence[str]) -> dict[str, Any] | str:
    """One label, which may be an integer or a boolean."""
    if _is_missing(value):
        return "missing_label"
    return {"label": _name_label(value)} if is_label(value) else "malformed"


def _name_label(value: str | float) -> str:
    """The name of a label: 1 and 1.0 are one label, and true is written as in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return normalize_label(str(int(value) if isinstance(value, float) else value))


def _parse_labels(value: Any, _: Sequence[str]) -> dict[str, Any] | str:
    """Any number of labels: a list, or a string with commas between them; none is allowed."""
    values = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(values, list) or not all(map(is_label, values)):
        return "malformed"
    names = map(_name_label, values)
    labels = tuple(dict.fromkeys(name for name in names if not is_blank(name)))
    return {"label": ", ".join(labels), "labels": labels}


def _parse_number(value: Any, _: Sequence[str]) -> dict[str, Any] | str:
    """A finite number."""
    if _is_missing(value):
        return "missing_label"
    try:
        # Python would read 1_000 as a number, which no other program does
        is_other = isinstance(value, bool) or (isinstance(value, str) and "_" in value)
        number = math.nan if is_other else float(value)
    except (TypeError, ValueError, OverflowError):  # an integer of 400 digits is no float
        number = math.nan
    if not abs(number) < _MAX_NUMBER:
        return "malformed"
    return {"label": str(value).strip(), "number": number}


def _parse_text_spans(value: Any, texts: Sequence[str]) -> dict[str, Any] | str:
    """Labeled spans of a text; none is allowed."""
    spans = parse_spans(texts[0], value)
    if isinstance(spans, str):
        return f"malformed: {spans}"
    summary = ", ".join(f"{texts[0][start:end]} = {label}" for start, end, label in spans)
    return {"label": summary, "labels": tuple(span.label for span in spans), "spans": tuple(spans)}


def _parse_context_answers(value: Any, texts: Sequence[str]) -> dict[str, Any] | str:
    """Answers to a question, in its context; none is allowed."""
    spans = parse_answers(texts[-1], value)
    if isinstance(spans, str):
        return f"malformed: {spans}"
    return {"label": spans[0].label if spans else "", "spans": tuple(spans)}


_FORMATS: Mapping[str, Callable[[Path], Iterator[tuple[int, Any]]]] = {
    "conll": read_conll, "squad": read_squad,
}  # fmt: skip
_MAX_NUMBER = 1e18  # its square is a number of single precision
# the fields of an example from the value of its label and its texts, or the kind of problem; what is expected
_PARSERS: dict[LabelKind, tuple[Callable[[Any, Sequence[str]], dict[str, Any] | str], str]] = {
    "class": (_parse_class, "text, an integer, true or false"),
    "labels": (_parse_labels, "a list of labels, or text with commas between them"),
    "number": (_parse_number, "a number"),
    "spans": (_parse_text_spans, "a list of spans"),
    "answers": (_parse_context_answers, "a list of answers"),
}


def normalize_label(label: str) -> str:
    """A label without blanks around it; an integer without a fraction of zeros: 1.0 is 1."""
    label = label.strip()
    return str(int(float(label))) if _INTEGER_WITH_FRACTION.fullmatch(label) else label


def has_fraction(value: Any) -> bool:
    """Whether a value is a number, or the text of one, with a fraction that is not 0."""
    if isinstance(value, str) and is_number(value):
        value = float(value)
    return isinstance(value, float) and not value.is_integer()


def is_number(value: Any) -> bool:
    """Whether a value is a number, or the text of one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe_single_class(labels: Iterable[str], source_label: str, tr: Translate = tr) -> str:
    """A warning if all labels are the same; "" if not."""
    if len(distinct := set(labels)) != 1:
        return ""
    return tr(
        "every text of {where} has the label {label}: scores only show how often it is predicted",
        where=source_label,
        label=repr(distinct.pop()),
    )


def describe_ambiguous_texts(
    texts: Sequence[Hashable], labels: Sequence[Hashable], lines: Sequence[int], source_label: str
) -> str:
    """A warning if a text occurs with several labels; "" if not."""
    first_labels: dict[Hashable, Hashable] = {}
    first_lines: dict[Hashable, int] = {}
    for text, label, line in zip(texts, labels, lines, strict=True):
        if first_labels.setdefault(text, label) != label:
            first_lines.setdefault(text, line)
    if not first_lines:
        return ""
    return tr(
        "{where}: texts with several labels: {count:,} (first: line {line:,})",
        where=source_label,
        count=len(first_lines),
        line=next(iter(first_lines.values())),
    )


def is_label(value: Any) -> bool:
    """Whether a value is a label: a string, an integer or a boolean.

    A float such as 1.0 counts as an integer, because columns with gaps contain such floats.
    """
    return value.is_integer() if isinstance(value, float) else isinstance(value, str | int)
