"""Read JSON: one parser with limits for files and requests, so that no value breaks what uses it later."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from polyhead.core.errors import UserError

MAX_NESTING = 100  # levels of arrays and objects; deeper ones overflow recursive code, also of libraries
MAX_DIGITS = 300  # digits of an integer; a longer one is no float, and beyond 4,300 not even printable
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode_json(content: str | bytes, source: object, *, is_strict: bool = False) -> Any:
    """Parse JSON; every mistake is a one-line UserError that names ``source``.

    ``is_strict``: NaN, infinite numbers and repeated keys are errors too; other tools write them in files.
    """
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content))
        value = (_parse_strict if is_strict else _parse)(text)
        if _SURROGATE.search(text):  # the escape of half of a surrogate pair, which UTF-8 cannot encode
            json.dumps(value, ensure_ascii=False).encode()
        _check_depth(value)
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start})") from None
    except UnicodeEncodeError:
        raise UserError(f"{source} has half of a surrogate pair, which is not valid Unicode") from None
    except RecursionError:
        raise UserError(f"{source} is nested too deeply: the maximum is {MAX_NESTING} levels") from None
    except ValueError as error:
        raise UserError(f"{source} is not valid JSON: {error}") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise RecursionError


def parse_int(digits: str) -> int:
    """Convert decimal digits; ValueError if there are more than ``MAX_DIGITS``."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; the maximum is {MAX_DIGITS}")
    return int(digits)


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def reject_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which Python's parser accepts."""
    raise ValueError(f"{name} is not a JSON number")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


_parse = json.JSONDecoder(parse_int=parse_int).decode
_parse_strict = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_keys,
    parse_constant=reject_constant,
    parse_float=_parse_finite,
    parse_int=parse_int,
).decode
