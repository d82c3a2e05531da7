"""Subtitles in SRT: the text of each one, or of each of two speakers; numbers and times stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from polyhead.core.errors import UserError, format_value
from polyhead.data.documents.segment import DocumentFormat, MarkupKind, Piece, Segment, group_pieces

_TIME = r"\d+:\d\d:\d\d[,.]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(\s.*)?")
_PART = re.compile(r"</(?P<close>\w+)>|<(?P<open>\w+)[^<>]*>|\{\\[^{}]*\}|(?P<text>[^<{]+|.)", re.DOTALL)
_KINDS: dict[str | None, MarkupKind] = {"text": "text", "open": "open", "close": "close", None: "atom"}
_DASH = re.compile(r"\s*[-–—]\s*", re.MULTILINE)
_EXPECTED = "times such as 00:00:01,000 --> 00:00:02,500"


def find_srt_segments(text: str, target_language: str = "") -> Iterator[Segment]:
    """Yield the text of each subtitle; damaged times raise a UserError."""
    start = end = -1  # of the text of a subtitle
    for number, match in enumerate(re.finditer(r"([^\n]*?)\r?(?:\n|\Z)", text), 1):
        if "-->" in match[1]:
            if not _TIMES.fullmatch(match[1]):
                raise UserError(f"srt: line {number} is {format_value(match[1])}; expected {_EXPECTED}")
            start = end = match.end()
        elif start >= 0 and match[1].strip() and end == match.start():
            end = match.end()
        else:
            yield from _find_speakers(text, start, end)
            start, end = min(start, 0), -1
    if start < 0 and text.strip():
        raise UserError(f"srt: the document has no {_EXPECTED}")


def _find_speakers(text: str, start: int, end: int) -> Iterator[Segment]:
    """Yield the text of a subtitle, or its lines if they begin with dashes."""
    lines = [(m.start(), m.end()) for m in re.compile(r"[^\r\n]+").finditer(text, max(start, 0), max(end, 0))]
    dashes = [_DASH.match(text, *line) for line in lines]
    if not any(dashes) and lines:
        lines, dashes = [(lines[0][0], lines[-1][1])], [None]
    for (first, last), dash in zip(lines, dashes, strict=True):
        first = dash.end() if dash else first
        pieces = []
        for found in _PART.finditer(text, first, last):
            said, name = (found["text"] or "").replace("\r\n", "\n"), found["open"] or found["close"] or ""
            pieces.append(Piece(_KINDS[found.lastgroup], found.start(), found[0], said, name))
        newline = "\r\n" if "\r\n" in text else "\n"
        yield from group_pieces(
            pieces, partial(break_lines, num_lines=text.count("\n", first, last) + 1, newline=newline)
        )


def break_lines(text: str, num_lines: int, newline: str = "\n") -> str:
    """The text in ``num_lines`` lines, of which the longest is broken near its middle."""
    lines = text.replace("-->", "->").split("\n")
    while len(lines) < num_lines:
        i = max(range(len(lines)), key=lambda i: len(lines[i]))
        spaces = [found.start() for found in re.finditer(r" (?![^<]*>)", lines[i])]  # not in a tag
        if not spaces:
            break
        middle = min(spaces, key=lambda place: abs(2 * place - len(lines[i])))
        lines[i : i + 1] = [lines[i][:middle], lines[i][middle + 1 :]]
    return newline.join(line for line in lines if line.strip())


SRT = DocumentFormat(find_srt_segments, str, (".srt",))
