"""Labeled spans of a text, and answers in a context: read, checked, and converted to tags and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.data.readers.files import is_text, iter_lines, open_lines
from polyhead.data.readers.tabular import parse_json_line

OUTSIDE = "O"
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_SCHEMES = str.maketrans("LUM", "ESI")  # BILOU and BMES as BIOES
_DOCUMENT_START = "-DOCSTART-"


class TextSpan(NamedTuple):
    """A labeled part of a sequence: of characters or of words."""

    start: int
    end: int
    label: str


def tags_to_spans(tags: Sequence[str]) -> list[TextSpan]:
    """Spans of tags by the rules of seqeval: IOB1, IOB2 (BIO) and BIOES; a bare label is that of I.

    A span ends before O, B, S and another label, and after E and S; any other tag begins or continues one.
    """
    spans, start, label, is_open = list[TextSpan](), 0, "", False
    for i, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, name = tag.partition("-") if tag[1:2] == "-" else ("I", "", tag)
        is_outside = tag == OUTSIDE
        if label and (is_outside or not is_open or prefix in "BS" or name != label):
            spans.append(TextSpan(start, i, label))
            label = ""
        if not is_outside and not label:
            start, label = i, name
        is_open = prefix not in "ES"
    return spans


def spans_to_tags(spans: Sequence[TextSpan], n: int) -> list[str]:
    """Tags B, I and O of n words."""
    tags = [OUTSIDE] * n
    for start, end, label in spans:
        tags[start:end] = [f"{'I' if i else 'B'}-{label}" for i in range(end - start)]
    return tags


def list_span_labels(tags: Sequence[str]) -> tuple[str, ...]:
    """The labels of tags, without their prefixes, sorted."""
    return tuple(sorted({tag[2:] if tag[1:2] == "-" else tag for tag in tags} - {OUTSIDE}))


def read_conll(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, (text, spans) or "malformed: reason") of each sentence of a CoNLL file.

    A line is a word, other columns and the tag, with white space between them; a blank line ends a sentence,
    whose text is its words with spaces between them. Lines of -DOCSTART-, and comments ("# ...") before a
    sentence, are skipped.
    """
    rows, place, problem, width = list[list[str]](), 0, "", 0
    texts = (line.decode() if is_text(line) else "\ufffd" for line in _iter_bytes(path))
    for number, line in enumerate((*texts, ""), 1):
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        if not any(cells):
            if rows:
                yield place, problem or _join_words(rows)
            rows, problem = [], ""
            continue
        is_comment = not rows and line.startswith("# ") and not _TAG.fullmatch(cells[-1])
        if cells[0] == _DOCUMENT_START or is_comment:
            continue
        place = place if rows else number
        width = width or max(len(cells), 2)
        rows.append(cells)
        if not problem and len(cells) != width:
            place, problem = number, f"malformed: columns: {len(cells)}, expected {width} as before"
        elif not problem and not _TAG.fullmatch(cells[-1]):
            expected = "expected O, or B-, I-, E- or S- and a label"
            place, problem = number, f"malformed: tag {cells[-1]!r}, {expected}"


def find_conll(path: Path, n_lines: int = 200) -> bool:
    """Whether a file looks like CoNLL: most of its first lines end with a tag, some of a span."""
    lines = [
        line.decode(errors="replace").split()
        for line, _ in zip(_iter_bytes(path), range(n_lines), strict=False)
    ]
    tags = [cells[-1] for cells in lines if len(cells) > 1]
    n_words = sum(map(bool, lines))
    return any(tag[1:2] == "-" for tag in tags) and 2 * sum(map(bool, map(_TAG.fullmatch, tags))) > n_words


def parse_spans(text: str, value: Any) -> list[TextSpan] | str:
    """Spans in order from a list of [0, 5, "PER"] or objects with these keys, or what is wrong.

    Blanks at the ends of a span are left out.
    """
    spans = []
    for item in [] if value is None else value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            item = [item.get(key) for key in ("start", "end", "label")]
        if not isinstance(item, list) or len(item) != 3 or not isinstance(item[2], str) or is_blank(item[2]):
            return f"span {format_value(item)}, expected start, end and label"
        start, end, label = item
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in (start, end)):
            return f"span {format_value(item)}: start and end must be numbers of characters"
        if not 0 <= start < end <= len(text):
            return f"span {start}:{end} is outside of its text of {len(text)} characters"
        part = text[start:end]
        if is_blank(part):
            return f"span {start}:{end} is blank"
        start += len(part) - len(part.lstrip())
        spans.append(TextSpan(start, start + len(part.strip()), label.strip()))
    spans.sort()
    for one, other in pairwise(spans):
        if other.start < one.end:
            return f"spans {one.start}:{one.end} and {other.start}:{other.end} overlap"
    return spans


def _join_words(rows: Sequence[Sequence[str]]) -> tuple[str, list[list[Any]]]:
    starts, at = [], 0
    for word, *_ in rows:
        starts.append(at)
        at += len(word) + 1
    tags = [row[-1][:1].translate(_SCHEMES) + row[-1][1:] for row in rows]
    spans = [
        [starts[start], starts[end - 1] + len(rows[end - 1][0]), label]
        for start, end, label in tags_to_spans(tags)
    ]
    return " ".join(word for word, *_ in rows), spans


def _iter_bytes(path: Path) -> Iterator[bytes]:
    return (line or b"" for line in iter_lines(path))


_SQUAD = re.compile(rb'\s*\{\s*"(data|version)"\s*:')
_HEAD_BYTES = 200


def is_squad(path: Path) -> bool:
    """Whether a file looks like SQuAD's JSON: one object with the key data."""
    with open_lines(path) as file:
        return _SQUAD.match(file.read(_HEAD_BYTES)) is not None


def read_squad(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (number of the question, (question, context, answers)) of a file (Rajpurkar et al., 2016; 2018).

    A file of another form is a UserError.
    """
    number = 0
    try:
        with open_lines(path) as file:
            articles = parse_json_line(file.read())["data"]
        for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
            for row in paragraph["qas"]:
                number += 1
                yield number, (row["question"], paragraph["context"], row.get("answers"))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        expected = '{"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., ...}]}]}]}'
        raise UserError(f"{path.name} is not SQuAD: after question {number:,}; expected {expected}") from None


def parse_answers(context: str, value: Any) -> list[TextSpan] | str:
    """Spans of a context, labeled by their texts, or what is wrong; none if there is no answer.

    ``value`` is a list of {"text": ..., "start": ...}, the start in characters, in SQuAD answer_start.
    """
    spans = []
    for item in [] if value is None else value if isinstance(value, list) else [value]:
        text = item.get("text") if isinstance(item, dict) else None
        start = item.get("start", item.get("answer_start")) if isinstance(item, dict) else None
        if not isinstance(text, str) or is_blank(text) or type(start) is not int:
            return f"answer {format_value(item)}, expected a text and its start"
        if start < 0 or context[start : start + len(text)] != text:
            return f"answer {format_value(text)} is not at character {start} of its context"
        start += len(text) - len(text.lstrip())
        spans.append(TextSpan(start, start + len(text.strip()), text.strip()))
    return spans
