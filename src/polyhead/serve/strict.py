"""JSON as the standard has it, both ways: no NaN, no key twice, no half characters, no depth that breaks the parser."""

from __future__ import annotations

import json
import math
from typing import Any

from polyhead.serve.refusal import Refusal

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def parse(body: bytes) -> dict[str, Any]:
    """The object that a request carries; whatever it is not is told in one line."""
    try:
        found = json.loads(
            body.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
        if b"\\u" in body:  # an escape may name half of a pair, which no encoding can write
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise Refusal(400, "invalid_json", "the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise Refusal(
            400, "invalid_json", "the body holds half of a surrogate pair, which is not Unicode text"
        ) from None
    except RecursionError:
        raise Refusal(400, "invalid_json", "the body is nested too deep") from None
    except ValueError as error:
        raise Refusal(400, "invalid_json", f"the body is not JSON: {error}"[:300]) from None
    if not isinstance(found, dict):
        raise Refusal(400, "invalid_json", 'the body must be a JSON object, such as {"input": "..."}')
    return found


def dump(value: Any) -> bytes:
    """Compact JSON; a number that JSON does not have is a defect and raises."""
    return _encode(value).encode()


def finite(value: float) -> float | None:
    """A log-probability as JSON can say it: none for minus infinity."""
    return value if math.isfinite(value) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value
