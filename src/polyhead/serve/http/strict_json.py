"""Strict JSON, both ways.

No NaN, no duplicate keys, no lone surrogates, and no nesting that overflows the parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from polyhead.serve.http.errors import ApiError

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body; the error states in one line what is wrong."""
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
        )
        if b"\\u" in body:  # an escape may be a lone surrogate, which UTF-8 cannot encode
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise ApiError(400, "invalid_json", "the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise ApiError(
            400, "invalid_json", "the body has half of a surrogate pair, which is not valid Unicode"
        ) from None
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeplyly") from None
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}"[:300]) from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", 'the body must be a JSON object, such as {"input": "..."}')
    return value


def dump_json(value: Any) -> bytes:
    """Encode as compact JSON; NaN or infinity is a defect and raises ValueError."""
    return _encode(value).encode()


def dump_json_list(fields: dict[str, Any], key: str, items: Iterable[Any]) -> bytes:
    """Encode an object of fields and, under ``key``, a list.

    The items are encoded one by one: the encoder holds the interpreter for the whole of a value, which for
    the embeddings of thousands of texts is a second in which no other thread runs.
    """
    encoded = b",".join(map(dump_json, items))
    return b"%s,%s:[%s]}" % (dump_json(fields)[:-1], dump_json(key), encoded)


def finite_or_none(value: float) -> float | None:
    """Return a log-probability, or None if it is not finite (JSON has no infinity)."""
    return value if math.isfinite(value) else None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value
