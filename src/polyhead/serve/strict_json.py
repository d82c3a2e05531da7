"""Strict JSON, both ways: no NaN, no duplicate keys, no lone surrogates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json
from polyhead.serve.api_errors import ApiError

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body; the error states in one line what is wrong."""
    try:
        value = decode_json(body.decode(), "the body", is_strict=True)
    except UnicodeDecodeError:
        raise ApiError(400, "invalid_json", "the body is not UTF-8") from None
    except UserError as error:
        raise ApiError(400, "invalid_json", str(error)[:300]) from None
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
