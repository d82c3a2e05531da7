"""The kinds of fields in requests: what is checked of each, and what /openapi.json says of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from polyhead.errors import UserError, show

LARGEST = 2**31 - 1
STOPS, STOP_CHARS = 4, 64


def one_or_many(given: Any) -> list[str]:
    """A text or a list of texts, as a list."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{show(given)} is not a text or a list of texts")
    return texts


def texts_or_ids(given: Any) -> list[str | list[int]]:
    """A text, texts, token ids or lists of token ids, as a list."""
    several = given if isinstance(given, list) and given and not _ids(given) else [given]
    if not all(isinstance(one, str) or _ids(one) for one in several):
        raise UserError(
            f"{show(given)} is not a text, a list of texts, a list of token ids, or a list of such lists"
        )
    return several


def texts_or_pairs(given: Any) -> list[str] | list[tuple[str, str]]:
    """A text or texts, or a list of pairs."""
    if isinstance(given, list) and given and all(isinstance(one, list) for one in given):
        if any(len(one) != 2 or not all(isinstance(text, str) for text in one) for one in given):
            raise UserError(f"{show(given)} is not a list of pairs of texts")
        return [(one[0], one[1]) for one in given]
    return one_or_many(given)


def stop_strings(given: Any) -> list[str]:
    """A few short texts that end an output."""
    stops = one_or_many(given)
    if len(stops) > STOPS or not all(0 < len(stop) <= STOP_CHARS for stop in stops):
        raise UserError(f"wanted at most {STOPS} texts of 1 to {STOP_CHARS} characters")
    return stops


def _ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) is int for one in given)


TEXT, IDS = {"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _many(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


Texts = Annotated[list[str], PlainValidator(one_or_many), WithJsonSchema({"anyOf": [TEXT, _many(TEXT)]})]
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(texts_or_ids),
    WithJsonSchema({"anyOf": [TEXT, _many(TEXT), IDS, _many(IDS)]}),
]
Pairs = Annotated[
    list[str] | list[tuple[str, str]],
    PlainValidator(texts_or_pairs),
    WithJsonSchema(
        {"anyOf": [TEXT, _many(TEXT), _many({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2})]}
    ),
]
Stops = Annotated[
    list[str],
    PlainValidator(stop_strings),
    WithJsonSchema(
        {"anyOf": [TEXT | {"minLength": 1, "maxLength": STOP_CHARS}, _many(TEXT) | {"maxItems": STOPS}]}
    ),
]
Ids = Annotated[list[Annotated[int, Field(ge=0, le=LARGEST)]], Field(min_length=1)]


def number(default: int, least: int, limit: str = "", most: int = LARGEST, about: str = "") -> Any:
    """A whole number; ``limit`` names the bound of the service that it keeps."""
    return Field(
        default, ge=least, le=most, description=about, json_schema_extra={"limit": limit} if limit else None
    )


def real(
    default: float, about: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> Any:
    """A finite number."""
    return Field(default, allow_inf_nan=False, description=about, ge=ge, gt=gt, le=le)
