import json
import math

import pytest

from polyhead.compare.io import read_json_file, write_json_file
from polyhead.core.errors import UserError


def test_non_finite_numbers_are_written_as_null(tmp_path):
    file = tmp_path / "cells" / "base" / "result.json"
    value = {"loss": math.nan, "costs": [1.5, math.inf, {"p": (-math.inf, 2)}], "learned": True}
    value["name"] = "größer"
    write_json_file(file, value)
    expected = {"loss": None, "costs": [1.5, None, {"p": [None, 2]}], "learned": True, "name": "größer"}
    assert json.loads(file.read_text(encoding="utf-8"), parse_constant=pytest.fail) == expected
    assert read_json_file(file) == expected
    assert math.isnan(value["loss"])  # the argument is not changed


@pytest.mark.parametrize("text", ["[1]", "7", '{"loss": ', ""])
def test_damaged_file_is_an_error_and_missing_none(tmp_path, text):
    file = tmp_path / "comparison.json"
    assert read_json_file(file) is None
    file.write_text(text)
    with pytest.raises(UserError, match=r"comparison\.json .*delete it to continue without it"):
        read_json_file(file)
