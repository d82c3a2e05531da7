from typing import Literal

import pytest

from polyhead.cli.formatting import format_type, format_yaml


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (format_type, float, "float"),
        (format_type, int | None, "int | null"),
        (format_type, Literal["none", "linear"], "none | linear"),
        (format_type, tuple[float, float], "tuple[float, float]"),
        (format_type, list[str] | None, "list[str] | null"),
        *((format_yaml, None, "null"), (format_yaml, True, "true"), (format_yaml, 0.1, "0.1")),
        *((format_yaml, "", '""'), (format_yaml, (0.9, 0.98), "[0.9, 0.98]")),
    ],
)
def test_types_and_values_are_written_in_short(write, value, text):
    assert write(value) == text
