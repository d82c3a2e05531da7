"""Read terminology files."""

from __future__ import annotations

from polyhead.cli.line_io import read_lines
from polyhead.core.errors import UserError


def read_terminology(source: str) -> dict[str, list[str]]:
    """Read the translations of each word; a line has a word and its translations, separated by tabs."""
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(source), 1):
        if "\ufffd" in line:
            raise UserError(f"--terminology: line {number} of {source} has characters that are not UTF-8")
        word, *phrases = line.split("\t")
        if line.strip() and not (phrases and all(part.strip() for part in (word, *phrases))):
            raise UserError(
                f"--terminology: line {number} of {source} is {line!r}; wanted a word, a tab and what it becomes"
            )
        if phrases:
            entries.setdefault(word, []).extend(phrases)
    if not entries:
        raise UserError(f"--terminology: {source} has no line with a word, a tab and what it becomes")
    return entries
