"""Tests of config/yaml_io.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.config.recipe_helpers import TEXT, complaint, written
from tests.config.recipe_helpers import recipe as recipe

from polyhead.config.yaml_io import parse_part, parse_yaml
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        (b"\x7fELF\x02\x01\x01\x00\xff", "not UTF-8 text (byte 8)"),
        (b"a: b\x00c", "a binary file, not YAML"),
        ("just words", "expected keys such as 'data:' and 'model:', got 'just words'"),
        ("- a\n- b\n", "expected keys such as 'data:' and 'model:', got ['a', 'b']"),
        (
            "data: {train: a.tsv\n",
            "line 1, column 7: unclosed bracket: } is missing",
        ),
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is defined twice"),
        ("a:\n  b: 1\n  b: 2\n", "line 3: key 'b' is defined twice"),
        ("a: &x [1]\nb: *y\n", "line 2, column 4: found undefined alias 'y'"),
        (
            "\tdata: 3",
            "line 1, column 1: a tab; YAML requires spaces for indentation: use two spaces for each tab",
        ),
        ("a: \x07", "not YAML: unacceptable character #x0007: special characters are not allowed"),
        ("? [a, b]\n: 1\n", "line 1, column 3: a key must be a single word"),
        ("[" * 5000, "nested too deeply"),
        ("a: !!int abc", "a value does not match its tag, or a number has too many digits"),
        ("a: !!bool maybe", "a value does not match its tag, or a number has too many digits"),
        ("a: !!timestamp 2001-99-99", "a value does not match its tag, or a number has too many digits"),
        ("a: " + "1" * 5000, "a value does not match its tag, or a number has too many digits"),
        ("a: " + "x" * 1_000_001, "1,000,004 bytes are too large for a recipe"),
    ],
)
def test_a_file_that_is_no_recipe_is_explained(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = written(tmp_path / "bad.yaml", content)
    assert complaint(path) == f"{path}: {message}"


def test_a_bomb_of_aliases_is_cut_short(tmp_path: Path) -> None:
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    path = written(tmp_path / "bomb.yaml", "a0: &a0 [x]\n" + levels + TEXT)
    assert all(len(line) < 300 for line in complaint(path).splitlines())


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path, recipe: Path) -> None:
    path = written(tmp_path / "small.yaml", b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_recipe(path).train.steps == 100


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("choice,among=[yes,no]", {"name": "choice", "among": ["yes", "no"]}),
        ('choice,among=["a, b", c]', {"name": "choice", "among": ["a, b", "c"]}),
        ('regex,pattern="[0-9]{2,3}"', {"name": "regex", "pattern": "[0-9]{2,3}"}),
        ("regex,pattern=a,b", {"name": "regex", "pattern": "a,b"}),
        ("json,schema={type: object, required: [a, b]}", {"name": "json", "schema": {"type": "object",
            "required": ["a", "b"]}}),
        ("choice,among=[red, 'b, c=d']", {"name": "choice", "among": ["red", "b, c=d"]}),
        ("choice,among=['it''s, a=b', \"\\\", c=d\"]", {"name": "choice", "among": ["it's, a=b", '", c=d']}),
        ("regex,pattern='a, b=c',flags=2", {"name": "regex", "pattern": "a, b=c", "flags": 2}),
        ("draft,run=it's,tokens=2", {"name": "draft", "run": "it's", "tokens": 2}),
        ("h2o,budget=256, recent=4", {"name": "h2o", "budget": 256, "recent": 4}),
    ],
)  # fmt: skip
def test_a_comma_in_a_value_of_a_part_is_its_own(short: str, whole: dict[str, Any]) -> None:
    assert parse_part(short) == whole


def test_a_value_of_a_part_that_is_not_yaml_is_told_with_its_option() -> None:
    with pytest.raises(UserError, match=r"^regex,pattern=\[0-9\]\{2\}: line 1, column 6: expected"):
        parse_part("regex,pattern=[0-9]{2}")


def bomb(of_merges: bool) -> str:
    lines = ["a0: &a0 {k: 1}"]
    for i in range(1, 12):
        aliases = f"[{', '.join([f'*a{i - 1}'] * 10)}]"
        lines.append(f"a{i}: &a{i}\n  <<: {aliases}" if of_merges else f"a{i}: &a{i} {aliases}")
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(False), bomb(True), "a: &a [*a]", "a: &a {<<: *a}"])
def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(text: str) -> None:
    with pytest.raises(UserError, match=r"^its aliases \(\*name\) expand to more than 1,000,000 values$"):
        parse_yaml(text)
    assert parse_yaml("a: &a {b: 1}\nc: [*a, *a]\nd: {<<: *a, e: 2}") == {
        "a": {"b": 1}, "c": [{"b": 1}] * 2, "d": {"b": 1, "e": 2}}  # fmt: skip


def test_numbers_and_nesting_have_limits() -> None:
    assert parse_yaml("9" * 300) == int("9" * 300) and parse_yaml("[" * 90 + "]" * 90)
    with pytest.raises(UserError, match="too many digits"):
        parse_yaml("9" * 301)
    with pytest.raises(UserError, match="nested too deeply"):
        parse_yaml("[" * 101 + "]" * 101)
