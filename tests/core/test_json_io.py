import json
import math

import pytest

from polyhead.core.errors import UserError
from polyhead.core.json_io import MAX_DIGITS, MAX_NESTING, decode_json

DEEPEST = "[" * MAX_NESTING + "]" * MAX_NESTING
VALID = ['{"a": [1, -2.5, "\\ud83d\\ude42", null, true]}', '{"a": 1, "a": 2}', "7", '"é"', "1e400"]
VALID += ["9" * MAX_DIGITS, DEEPEST]


@pytest.mark.parametrize("content", VALID)
def test_valid_json_is_that_of_the_standard_library(content):
    assert decode_json(content, "file") == decode_json(content.encode(), "file") == json.loads(content)
    assert decode_json(content.encode("utf-8-sig"), "file") == json.loads(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "x.json is not valid JSON: Expecting property name"),
        ("9" * (MAX_DIGITS + 1), "x.json is not valid JSON: a number has 301 digits; the maximum is 300"),
        (f"[{DEEPEST}]", "x.json is nested too deeply: the maximum is 100 levels"),
        ('["\\ud800"]', "x.json has half of a surrogate pair"),
        (b"\xff\xfe\xff", "x.json is not UTF-8 text"),
        (b'"\xed\xa0\x80"', r"x.json is not UTF-8 text \(byte 1\)"),
    ],
)
def test_invalid_json_is_refused_in_one_line(content, message):
    with pytest.raises(UserError, match="^" + message) as error:
        decode_json(content, "x.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["NaN", "[Infinity]", "1e400", '{"a": 1, "a": 2}'])
def test_strict_json_refuses_infinity_and_repeated_keys(content):
    value = decode_json(content, "file")
    assert value == {"a": 2} or not math.isfinite(value[0] if isinstance(value, list) else value)
    with pytest.raises(UserError, match="file is not valid JSON: "):
        decode_json(content, "file", is_strict=True)
