"""Tests of cli/formatting.py."""

from typing import Literal

import pytest

from polyhead.cli.formatting import format_type, format_yaml


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float, "float"),
        (int | None, "int | null"),
        (Literal["none", "linear"], "none | linear"),
        (tuple[float, float], "tuple[float, float]"),
        (list[str] | None, "list[str] | null"),
    ],
)
def test_type_is_written_in_short(hint, text):
    assert format_type(hint) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (0.1, "0.1"), ("", '""'), ((0.9, 0.98), "[0.9, 0.98]")],
)
def test_value_is_written_as_in_a_recipe(value, text):
    assert format_yaml(value) == text
