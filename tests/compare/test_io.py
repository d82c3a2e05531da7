"""Tests of compare/io.py."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from polyhead.compare.io import read_json_file, write_json_file
from polyhead.core.errors import UserError


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    file = tmp_path / "cells" / "base" / "result.json"
    value = {
        "loss": math.nan,
        "costs": [1.5, math.inf, {"p": (-math.inf, 2)}],
        "learned": True,
        "name": "größer",
    }
    write_json_file(file, value)
    strict = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert strict == {"loss": None, "costs": [1.5, None, {"p": [None, 2]}], "learned": True, "name": "größer"}
    assert read_json_file(file) == strict
    assert math.isnan(value["loss"])  # what was given is left as it is


@pytest.mark.parametrize("text", ["[1]", "7", '{"loss": ', ""])
def test_a_damaged_file_is_an_error_and_a_missing_one_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "comparison.json"
    assert read_json_file(file) is None
    file.write_text(text)
    with pytest.raises(UserError, match=r"comparison\.json .*delete it to continue without it"):
        read_json_file(file)
