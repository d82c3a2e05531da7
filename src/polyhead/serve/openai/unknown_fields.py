"""Unknown fields inside the objects of a request; they obey the rule of the fields of the body.

A field without effect is ignored and reported; one that would change the answer elsewhere is rejected unless
it has a value without effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from polyhead.chat.tools import drop_nulls
from polyhead.core.errors import did_you_mean
from polyhead.serve.openai.schema_fields import FUNCTION_FIELDS
from polyhead.serve.openai.schemas import ChatBody, RequestBody, ResponseBody

HINT_CUTOFF = 0.7  # similarity of a name to a known one that is suggested
NO_VALUES: Mapping[str, tuple[Any, ...]] = {}


class KnownFields(NamedTuple):
    """Field names that may occur in one kind of object."""

    known_names: frozenset[str]
    # sent by OpenAI's clients: no effect; reported if not empty, but not with ``strict``
    client_names: frozenset[str]
    # written by this service itself, and sent back unchanged
    own_names: frozenset[str] = frozenset()
    # unsupported and would change the answer -> the values that have no effect
    neutral_values: Mapping[str, tuple[Any, ...]] = NO_VALUES


class UnknownField(NamedTuple):
    """A field that has no effect, or that is not supported."""

    field: str  # field of the body
    name: str
    location: str
    hint: str


class RequestObject(NamedTuple):
    """An object inside of a request."""

    field: str  # field of the body
    location: str
    values: Any
    known_fields: KnownFields


def _known_fields(
    known_names: str,
    client_names: str = "",
    own_names: str = "",
    neutral_values: Mapping[str, tuple[Any, ...]] = NO_VALUES,
) -> KnownFields:
    return KnownFields(
        frozenset(known_names.split()),
        frozenset(client_names.split()),
        frozenset(own_names.split()),
        neutral_values,
    )


MESSAGE_FIELDS = _known_fields(
    "role content tool_calls tool_call_id reasoning reasoning_content",
    "name refusal annotations audio function_call parsed",
)
PART_FIELDS = _known_fields("type text", "prompt_cache_breakpoint")
CALL_FIELDS = _known_fields("id type function", "index")
CALLED_FUNCTION_FIELDS = _known_fields("name arguments", "parsed_arguments")
ITEM_FIELDS = {
    "message": _known_fields("type role content", "phase", "id status"),
    "reasoning": _known_fields("type content", "encrypted_content", "id status summary"),
    "function_call": _known_fields("type call_id name arguments", "caller namespace async async_ "
        "parsed_arguments", "id status"),
    "function_call_output": _known_fields("type call_id output", "name caller namespace", "id status"),
}  # fmt: skip
ITEM_PART_FIELDS = _known_fields("type text", "annotations prompt_cache_breakpoint parsed", "logprobs")
TOOL_FIELDS = _known_fields("type function")
CALLABLE_FIELDS = _known_fields(" ".join(FUNCTION_FIELDS))
RESPONSE_CHOICE_FIELDS = _known_fields("type name")
RESPONSE_TOOL_FIELDS = _known_fields(" ".join(("type", *FUNCTION_FIELDS)))
FIELDS_BY_PATH = {
    "stream_options": _known_fields("include_usage", "include_obfuscation", "",
        {"continuous_usage_stats": (False,)}),
    "response_format": _known_fields("type json_schema"),
    "response_format.json_schema": _known_fields("schema", "name strict description"),
    "structured_outputs": _known_fields("regex choice json grammar", "", "", {
        "structural_tag": (), "whitespace_pattern": (), **dict.fromkeys(("json_object", "disable_fallback",
            "disable_any_whitespace", "disable_additional_properties"), (False,)),
    }),
    "text": _known_fields("format", "verbosity"),
    "text.format": _known_fields("type schema", "name strict description"),
    "tool_choice": _known_fields("type function"),
    "tool_choice.function": _known_fields("name"),
}  # fmt: skip
"""Objects of every route, by their path in the body."""


def find_unknown_fields(
    body_type: type[RequestBody], values: Mapping[str, Any], strict: bool, max_count: int
) -> list[UnknownField]:
    """Return the first ``max_count`` unknown fields of a validated body.

    With ``strict``, fields that OpenAI's clients send by default are left out.
    """
    return list(islice(_iter_unknown_fields(body_type, values, strict, max_count), max_count))


def find_unsupported_field(body_type: type[RequestBody], values: Mapping[str, Any]) -> UnknownField | None:
    """Return a field inside of an object that is not supported and would change the answer."""
    for field, location, fields, known_fields in _iter_objects(body_type, values):
        for name in sorted(fields.keys() & known_fields.neutral_values.keys()):
            neutral = known_fields.neutral_values[name]
            if fields[name] is not None and not any(is_same_json(fields[name], value) for value in neutral):
                return UnknownField(field, name, location, "")
    return None


def _iter_unknown_fields(
    body_type: type[RequestBody], values: Mapping[str, Any], strict: bool, max_count: int
) -> Iterator[UnknownField]:
    for field, location, fields, known in _iter_objects(body_type, values):
        unknown = drop_nulls(fields).keys() - known.known_names - known.own_names
        unknown -= known.neutral_values.keys()
        ignorable = {name for name in unknown & known.client_names if strict or fields[name] in ("", [], {})}
        for name in nsmallest(max_count, unknown - ignorable):
            has_hint = name not in known.client_names
            hint = did_you_mean(name, known.known_names, HINT_CUTOFF) if has_hint else ""
            yield UnknownField(field, name, location, hint)


def _iter_objects(body_type: type[RequestBody], values: Mapping[str, Any]) -> Iterator[RequestObject]:
    """Yield the objects of a request: settings, tools, and every message or item with its parts."""
    for path, known_fields in FIELDS_BY_PATH.items():
        field, _, inner = path.partition(".")
        found = values.get(field) if field in body_type.model_fields else None
        found = found.get(inner) if inner and isinstance(found, Mapping) else None if inner else found
        if isinstance(found, Mapping):
            known = (
                RESPONSE_CHOICE_FIELDS if (body_type, path) == (ResponseBody, "tool_choice") else known_fields
            )
            yield RequestObject(field, path, found, known)
    yield from _iter_tools(body_type, values.get("tools") or ())
    if body_type is ChatBody:
        for number, message in enumerate(values["messages"]):
            label = f"message {number}"
            yield RequestObject("messages", label, message, MESSAGE_FIELDS)
            yield from _iter_parts("messages", label, message.get("content"), PART_FIELDS)
            for index, call in enumerate(message.get("tool_calls") or ()):
                location = f"call {index} of {label}"
                yield RequestObject("messages", location, call, CALL_FIELDS)
                yield RequestObject(
                    "messages", f"the function of {location}", call["function"], CALLED_FUNCTION_FIELDS
                )
    elif body_type is ResponseBody and not isinstance(values["input"], str):
        for number, item in enumerate(values["input"]):
            keys = ITEM_FIELDS[item.get("type") or "message"]
            yield RequestObject("input", f"item {number}", item, keys)
            content = item.get("output" if "output" in keys.known_names else "content")
            yield from _iter_parts("input", f"item {number}", content, ITEM_PART_FIELDS)


def _iter_tools(body_type: type[RequestBody], tools: Any) -> Iterator[RequestObject]:
    for number, tool in enumerate(tools if "tools" in body_type.model_fields else ()):
        if body_type is ResponseBody:
            yield RequestObject("tools", f"tool {number}", tool, RESPONSE_TOOL_FIELDS)
            continue
        yield RequestObject("tools", f"tool {number}", tool, TOOL_FIELDS)
        yield RequestObject("tools", f"the function of tool {number}", tool["function"], CALLABLE_FIELDS)


def _iter_parts(
    field: str, location: str, content: Any, known_fields: KnownFields
) -> Iterator[RequestObject]:
    for number, part in enumerate(content if isinstance(content, list) else ()):
        yield RequestObject(field, f"part {number} of {location}", part, known_fields)


def is_same_json(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal; False and 0 are different."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
