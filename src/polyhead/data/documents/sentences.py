"""Split a text into paragraphs, and into sentences by the rules and abbreviations of its language."""

from __future__ import annotations

import re

from polyhead.tokenizers.languages import normalize_language
from polyhead.tokenizers.scripts import is_unspaced_char

MIN_WIDTH = 40  # characters of the longest line of a wrapped paragraph, at least
_ODD_SPACES = {ord(char): " " for char in map(chr, range(0x80, 0x3001)) if char.isspace()}


def split_sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without the white space around it."""
    import sentencex

    sentences, start = list[tuple[int, int]](), 0
    # the library miscounts the bytes of other spaces before a full stop
    for part in sentencex.segment(normalize_language(language), text.translate(_ODD_SPACES)):
        if bare := part.strip():
            first = start + part.index(bare)
            sentences.append((first, first + len(bare)))
        start += len(part)
    return sentences


def find_paragraphs(text: str) -> list[tuple[int, int]]:
    """Start and end of each paragraph: between blank lines, or each line unless the lines are wrapped."""
    blocks, end = list[list[tuple[int, int]]](), -2
    for match in re.finditer(r"[^\n]+", text):
        if match.start() > end + 1:
            blocks.append([])
        if not match[0].isspace():
            blocks[-1].append(match.span())
            end = match.end()
    paragraphs = list[tuple[int, int]]()
    for lines in filter(None, blocks):
        is_one = is_wrapped([text[start:end] for start, end in lines])
        paragraphs += [(lines[0][0], lines[-1][1])] if is_one else lines
    return paragraphs


def is_wrapped(lines: list[str]) -> bool:
    """Whether lines of a usual width end where the next word had no room."""
    width = max(map(len, lines))
    heads = ["x" if is_unspaced_char(line.strip()[0]) else line.split()[0] for line in lines[1:]]
    is_full = all(len(a) + 1 + len(b) > width for a, b in zip(lines, heads, strict=False))
    return len(lines) > 1 and width >= MIN_WIDTH and is_full
