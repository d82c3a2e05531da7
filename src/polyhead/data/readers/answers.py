"""Questions on contexts with their answers: read from SQuAD's JSON and from rows, and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.data.readers.files import open_lines
from polyhead.data.readers.spans import TextSpan
from polyhead.data.readers.tabular import parse_json_line

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
