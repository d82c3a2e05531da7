"""The kinds of fields in requests: what is checked of each, and what /openapi.json says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from polyhead.errors import UserError, show
from polyhead.generation_section import LARGEST, biases
from polyhead.text.chat.base import ROLES, Message
from polyhead.text.chat.tools import CHOICES, Tool, calls_of, chosen, every

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


def messages(given: Any) -> list[Message]:
    """A conversation of texts; a developer's message is the system's."""
    if not isinstance(given, list) or not given:
        raise UserError(f"{show(given)} is not a list of messages")
    return [_message(one, number) for number, one in enumerate(given)]


def _message(given: Any, number: int) -> Message:
    if not isinstance(given, dict):
        raise UserError(f"message {number} is {show(given)}, wanted an object with role and content")
    for name in ("function_call", "audio"):
        if given.get(name):
            raise UserError(f"message {number} has {name}, which is not supported: text and tool_calls are")
    role, content, answers = given.get("role"), given.get("content"), given.get("tool_call_id")
    if not isinstance(role, str):
        raise UserError(f"message {number} has the role {show(role)}, wanted {', '.join(ROLES)}")
    calls = calls_of(given.get("tool_calls"), number)
    if isinstance(content, list):
        content = "".join(text_of(part, ("text",), f"message {number}") for part in content)
    if calls and content is None:
        content = ""
    if not isinstance(content, str):
        raise UserError(f"message {number} has the content {show(content)}, wanted a text or a list of texts")
    if not isinstance(answers, str | None):
        raise UserError(f"message {number} has the tool_call_id {show(answers)}, wanted a text")
    return Message("system" if role == "developer" else role, content, calls, answers or "")


def text_of(part: Any, kinds: Sequence[str], what: str) -> str:
    """The text of one part of what ``what`` says, whose type is one of these."""
    given = part if isinstance(part, dict) else {"type": part}
    if given.get("type") not in kinds or not isinstance(given.get("text"), str):
        raise UserError(
            f"{what} has a part {show(given.get('type'))}; this model reads text alone: {{type: {kinds[0]}, text: ...}}"
        )
    return str(given["text"])


def stop_strings(given: Any) -> list[str]:
    """A few short texts that end an output."""
    stops = [] if given == [] else one_or_many(given)
    if len(stops) > STOPS or not all(0 < len(stop) <= STOP_CHARS for stop in stops):
        raise UserError(f"wanted at most {STOPS} texts of 1 to {STOP_CHARS} characters")
    return stops


def entries(given: Any) -> dict[str, list[str]]:
    """Words, and for each a text or texts that it may become."""
    if not isinstance(given, dict):
        raise UserError(f'{show(given)} is not an object such as {{"dog": "Hund"}}')
    return {str(word): one_or_many(phrases) for word, phrases in given.items()}


def token_ids(given: Any) -> list[int]:
    """Token ids; of many that are none the first is told, for each costs time."""
    if not isinstance(given, list) or not given:
        raise UserError(f"{show(given)} is not a list of token ids")
    for number, one in enumerate(given):
        if type(one) is not int or not 0 <= one <= LARGEST:
            raise UserError(f"{show(one)}, which stands at {number}, is not a token id")
    return given


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
PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": TEXT},
}
NAME = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}
FUNCTION = {"type": {"const": "function"}}


def _function(**properties: Any) -> dict[str, Any]:
    """What is said of a function: its name, and more."""
    return {"type": "object", "required": ["name"], "properties": {"name": NAME, **properties}}


CALL = {
    "type": "object",
    "required": ["function"],
    "properties": {"id": TEXT, **FUNCTION, "function": _function(arguments=TEXT)},
}
TOOL = {
    "type": "object",
    "required": ["function"],
    "properties": {**FUNCTION, "function": _function(description=TEXT, parameters={"type": "object"})},
}
CHOICE = {
    "type": "object",
    "required": ["function"],
    "properties": {**FUNCTION, "function": _function()},
}
ToolList = Annotated[
    tuple[Tool, ...],
    PlainValidator(every),
    WithJsonSchema({"anyOf": [{"type": "array", "items": TOOL}, {"type": "null"}]}),
]
ToolChoice = Annotated[
    str | list[str],
    PlainValidator(chosen),
    WithJsonSchema({"anyOf": [{"enum": list(CHOICES)}, CHOICE, {"type": "null"}]}),
]
Messages = Annotated[
    list[Message],
    PlainValidator(messages),
    WithJsonSchema(
        _many(
            {
                "type": "object",
                "required": ["role"],
                "properties": {
                    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                    "content": {"anyOf": [TEXT, _many(PART), {"type": "null"}]},
                    "tool_calls": {"type": "array", "items": CALL},
                    "tool_call_id": TEXT,
                },
            }
        )
    ),
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
TermTable = Annotated[
    dict[str, list[str]],
    PlainValidator(entries),
    WithJsonSchema({"type": "object", "additionalProperties": {"anyOf": [TEXT, _many(TEXT)]}}),
]
BiasTable = Annotated[
    dict[int, float],
    PlainValidator(biases),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
Ids = Annotated[list[int], PlainValidator(token_ids), WithJsonSchema(IDS)]


OF_RUN = "of_run"
"""Marks a field of which nothing is known if it is not given: what is then done is as the run says."""


def number(
    default: int, least: int, limit: str = "", most: int = LARGEST, about: str = "", fixed: bool = False
) -> Any:
    """A whole number; ``limit`` names the bound of the service that it keeps. Without a ``fixed`` default the run has one."""
    extra: dict[str, Any] = ({"limit": limit} if limit else {}) | ({} if fixed else {OF_RUN: True})
    return Field(default, ge=least, le=most, description=about, json_schema_extra=extra)


def real(
    default: float, about: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> Any:
    """A finite number, of which the run has a default."""
    extra: dict[str, Any] = {OF_RUN: True}
    return Field(
        default, allow_inf_nan=False, description=about, ge=ge, gt=gt, le=le, json_schema_extra=extra
    )
