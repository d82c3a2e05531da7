import ast
import errno
import json
import os
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from pydantic_core._pydantic_core import list_all_errors

from polyhead.core.i18n import CATALOG_PACKAGES, list_catalogs

ROOTS = [Path(import_module(name.split(".")[0]).__file__).parent for name in CATALOG_PACKAGES]
# texts of help are put together by docstrings and typer; cli/test_verb_help.py compares them
CATALOGS = [path for path in list_catalogs("zh") if path.stem != "help"]
PLACEHOLDER = re.compile(r"\{\w+[^{}]*\}")
# catalogs of finished texts, which the sources put together of several pieces
COMBINED_CATALOGS = {"errors", "facts", "lab", "pages", "serve"}
# texts that the sources make in another way than by joining pieces
REWRITTEN = (
    "differs from the run's own recipe; use ",  # an f-string adds the s
    " parallel samples need at least 6 % less memory, because they share the prompt.",  # replaces a number
    "greedy, up to 32 texts in parallel",  # fills in a constant
)


def strings_of_python(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "\0" for v in node.values)  # type: ignore[misc]


def strings_of_script(path):
    for string in re.findall(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`', path.read_text()):
        yield string[1:-1].replace('\\"', '"')


@cache
def source_strings():
    """Every text in the sources; values in f-strings are the character 0."""
    readers = {"py": strings_of_python, "js": strings_of_script}
    files = [(p, read) for root in ROOTS for end, read in readers.items() for p in root.rglob(f"*.{end}")]
    return frozenset(s for path, read in files for s in read(path))


@cache
def fragments():
    system = [os.strerror(number) for number in errno.errorcode]
    system += [one["message_template_python"].removeprefix("Input ") for one in list_all_errors()]
    plain = [text.replace("``", "") for text in source_strings()]
    value = rf"\0|\$\{{[^}}]*\}}|{PLACEHOLDER.pattern}"
    texts = [*source_strings(), *system, *plain, *REWRITTEN]
    return frozenset(piece for text in texts for piece in re.split(value, text) if piece)


@cache
def all_fragments():
    return "\1".join(["", *fragments(), ""])


def is_combined(piece):
    """Whether a piece is within a fragment, or the end of one, whole ones, and the beginning of one.

    Fragments meet between words only.
    """
    if piece in all_fragments():
        return True
    seams = [i for i in range(1, len(piece)) if not piece[i - 1 : i + 1].isalnum()]
    starts = [i for i in seams if f"{piece[:i]}\1" in all_fragments()]
    visited_starts = set(starts)
    while starts:
        start = starts.pop()
        following = {i for i in seams if i > start and piece[start:i] in fragments()} - visited_starts
        visited_starts |= following
        starts += following
    return any(f"\1{piece[i:]}" in all_fragments() for i in visited_starts)


def find_unknown(key, allow_pieces):
    if key in source_strings():
        return []
    pieces = PLACEHOLDER.split(key)
    if allow_pieces:
        return [piece for piece in pieces if not is_combined(piece)]
    return [piece for piece in pieces if not any(piece in text for text in source_strings())]


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_entry_is_a_text_of_the_sources(path):
    keys = json.loads(path.read_text())
    unknown = {key: pieces for key in keys if (pieces := find_unknown(key, path.stem in COMBINED_CATALOGS))}
    assert not unknown
