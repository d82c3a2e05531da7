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
WORD = re.compile(r"[A-Za-z]{3,}")
# catalogs of finished texts, which the sources put together of several pieces: each of their words is looked
# for
COMPOSED = {"errors", "facts", "lab", "mistakes", "pages", "serve"}


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
def known_words() -> frozenset[str]:
    """Words of the sources, and of the messages of the system and of pydantic, which are passed on."""
    passed_on = [os.strerror(number) for number in errno.errorcode]
    passed_on += [one["message_template_python"] for one in list_all_errors()]
    names = " ".join(
        path.read_text() for path in ROOT.rglob("*.py")
    )  # names of fields and metrics are words too
    return frozenset(WORD.findall(" ".join([*source_strings(), *passed_on, names])))


def find_unknown(key: str, composed: bool) -> list[str]:
    """What of a key the sources do not say."""
    if key in source_strings():
        return []
    pieces = PLACEHOLDER.split(key)
    if composed:
        return [word for piece in pieces for word in WORD.findall(piece) if word not in known_words()]
    return [piece for piece in pieces if not any(piece in text for text in source_strings())]


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_entry_is_a_text_of_the_sources(path: Path) -> None:
    keys = json.loads(path.read_text())
    unknown = {key: found for key in keys if (found := find_unknown(key, path.stem in COMPOSED))}
    assert not unknown


def test_an_entry_that_nothing_says_is_found() -> None:
    assert find_unknown("no such label {n}", composed=False) == ["no such label "]
    assert find_unknown("the zebras of {file}", composed=True) == ["zebras"]
    assert not find_unknown("{file}: Permission denied", composed=True)
