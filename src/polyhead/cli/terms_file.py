"""A file that says what words must become in a translation."""

from __future__ import annotations

from polyhead.cli.lines import read_lines
from polyhead.errors import UserError


def read_terms(source: str) -> dict[str, list[str]]:
    """What words must become, by the word: of a file with a word and its translations on each line, tabs between them."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(source), 1):
        if "\ufffd" in line:
            raise UserError(f"--terms: line {number} of {source} has characters that are not UTF-8")
        word, *phrases = line.split("\t")
        if line.strip() and not (phrases and all(part.strip() for part in (word, *phrases))):
            raise UserError(
                f"--terms: line {number} of {source} is {line!r}; wanted a word, a tab and what it becomes"
            )
        if phrases:
            found.setdefault(word, []).extend(phrases)
    if not found:
        raise UserError(f"--terms: {source} has no line with a word, a tab and what it becomes")
    return found
