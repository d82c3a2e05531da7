"""The catalogs hold nothing that the sources no longer say."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic_core._pydantic_core import list_all_errors

import polyhead

ROOT = Path(polyhead.__file__).parent
CATALOGS = sorted(ROOT.glob("core/locale/*/*.json"))
PLACEHOLDER = re.compile(r"\{\w+[^{}]*\}")
# catalogs of finished texts, which the sources put together of several pieces
COMPOSED = {"errors", "facts", "lab", "mistakes", "pages", "serve"}
# texts that the sources make in another way than by joining pieces
REWRITTEN = (
    "differs from the run's own recipe; use ",  # an f-string adds the s
    " parallel samples need at least 6 % less memory, because they share the prompt.",  # replaces a number
    "greedy, up to 32 texts in parallel",  # fills in a constant
)


def strings_of_python(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values)  # type: ignore[misc]


def strings_of_script(path: Path) -> Iterator[str]:
    for quoted in re.findall(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`', path.read_text()):
        yield quoted[1:-1].replace('\\"', '"')


@cache
def source_strings() -> frozenset[str]:
    """Every text in the sources; values in f-strings are the character 0."""
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        found.update(strings_of_python(path))
    for path in ROOT.rglob("*.js"):
        found.update(strings_of_script(path))
    return frozenset(found)


@cache
def fragments() -> frozenset[str]:
    """Texts of the sources between values, and of the system and of pydantic, which are passed on."""
    passed_on = [os.strerror(number) for number in errno.errorcode]
    passed_on += [one["message_template_python"].removeprefix("Input ") for one in list_all_errors()]
    documented = [text.replace("``", "") for text in source_strings()]
    value = rf"\0|\$\{{[^}}]*\}}|{PLACEHOLDER.pattern}"
    texts = [*source_strings(), *passed_on, *documented, *REWRITTEN]
    return frozenset(piece for text in texts for piece in re.split(value, text) if piece)


@cache
def all_fragments() -> str:
    """Every fragment between two characters 1, to search in."""
    return "\1".join(["", *fragments(), ""])


def is_composed(piece: str) -> bool:
    """Whether a piece is within a fragment, or the end of one, whole ones, and the beginning of one.

    Fragments meet between words only.
    """
    if piece in all_fragments():
        return True
    seams = [i for i in range(1, len(piece)) if not piece[i - 1 : i + 1].isalnum()]
    starts = [i for i in seams if f"{piece[:i]}\1" in all_fragments()]
    reached = set(starts)
    while starts:
        start = starts.pop()
        following = {i for i in seams if i > start and piece[start:i] in fragments()} - reached
        reached |= following
        starts += following
    return any(f"\1{piece[i:]}" in all_fragments() for i in reached)


def find_unknown(key: str, composed: bool) -> list[str]:
    """What of a key the sources do not say."""
    if key in source_strings():
        return []
    pieces = PLACEHOLDER.split(key)
    if composed:
        return [piece for piece in pieces if not is_composed(piece)]
    return [piece for piece in pieces if not any(piece in text for text in source_strings())]


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_entry_is_a_text_of_the_sources(path: Path) -> None:
    keys = json.loads(path.read_text())
    unknown = {key: found for key in keys if (found := find_unknown(key, path.stem in COMPOSED))}
    assert not unknown


def test_an_entry_that_nothing_says_is_found() -> None:
    assert find_unknown("no such label {n}", composed=False) == ["no such label "]
    assert find_unknown("the zebras of {file}", composed=True) == ["the zebras of "]
    assert not find_unknown("{file}: Permission denied", composed=True)


def test_known_words_in_a_text_that_nothing_says_are_found() -> None:
    mixed = "The Transformer trains faster, because it context of all tokens."
    assert find_unknown(mixed, composed=True) == [mixed]
    assert find_unknown("Loss {a}; by chance it would be {c}.", composed=True) == ["; by chance it would be "]
    assert not find_unknown(
        "The Transformer trains faster, because it reads all tokens at once.", composed=True
    )
