"""Unknown fields in messages, items and their parts; they are reported like unknown fields of the body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from polyhead.chat.tools import drop_nulls
from polyhead.core.errors import did_you_mean
from polyhead.serve.openai.schemas import ChatBody, RequestBody, ResponseBody


class KnownFields(NamedTuple):
    """Field names that may occur in one kind of object."""

    known_names: frozenset[str]
    # sent by OpenAI's clients: no effect; reported if not empty, but not with ``strict``
    client_names: frozenset[str]
    # written by this service itself, and sent back unchanged
    own_names: frozenset[str] = frozenset()


class UnknownField(NamedTuple):
    """A field that has no effect."""

    field: str  # field of the body
    name: str
    location: str
    hint: str


def _known_fields(known_names: str, client_names: str = "", own_names: str = "") -> KnownFields:
    return KnownFields(
        frozenset(known_names.split()), frozenset(client_names.split()), frozenset(own_names.split())
    )


LIST_FIELDS: dict[type[RequestBody], str] = {ChatBody: "messages", ResponseBody: "input"}
MESSAGE_FIELDS = _known_fields(
    "role content tool_calls tool_call_id", "name refusal annotations audio function_call parsed"
)
PART_FIELDS = _known_fields("type text", "prompt_cache_breakpoint")
ITEM_FIELDS = {
    "message": _known_fields("type role content", "phase", "id status"),
    "function_call": _known_fields("type call_id name arguments", "caller namespace async async_ "
        "parsed_arguments", "id status"),
    "function_call_output": _known_fields("type call_id output", "name caller namespace", "id status"),
}  # fmt: skip
ITEM_PART_FIELDS = _known_fields("type text", "annotations prompt_cache_breakpoint parsed", "logprobs")


def find_unknown_fields(
    body_type: type[RequestBody], values: Mapping[str, Any], strict: bool, max_count: int
) -> list[UnknownField]:
    """Return the first ``max_count`` unknown fields of a validated body.

    With ``strict``, fields that OpenAI's clients send by default are left out.
    """
    return list(islice(_iter_unknown_fields(body_type, values, strict, max_count), max_count))


def _iter_unknown_fields(
    body_type: type[RequestBody], values: Mapping[str, Any], strict: bool, max_count: int
) -> Iterator[UnknownField]:
    for location, fields, known_fields in _iter_objects(body_type, values):
        unknown = drop_nulls(fields).keys() - known_fields.known_names - known_fields.own_names
        ignorable = {
            name for name in unknown & known_fields.client_names if strict or fields[name] in ("", [], {})
        }
        for name in nsmallest(max_count, unknown - ignorable):
            yield UnknownField(
                LIST_FIELDS[body_type],
                name,
                location,
                "" if name in known_fields.client_names else did_you_mean(name, known_fields.known_names),
            )


def _iter_objects(
    body_type: type[RequestBody], values: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], KnownFields]]:
    """Yield every message or item, and each of its parts: (location, fields, known field names)."""
    if body_type is ChatBody:
        for number, message in enumerate(values["messages"]):
            yield f"message {number}", message, MESSAGE_FIELDS
            yield from _iter_parts(f"message {number}", message.get("content"), PART_FIELDS)
    elif body_type is ResponseBody and not isinstance(values["input"], str):
        for number, item in enumerate(values["input"]):
            keys = ITEM_FIELDS[item.get("type") or "message"]
            yield f"item {number}", item, keys
            content = item.get("output" if "output" in keys.known_names else "content")
            yield from _iter_parts(f"item {number}", content, ITEM_PART_FIELDS)


def _iter_parts(
    location: str, content: Any, known_fields: KnownFields
) -> Iterator[tuple[str, Mapping[str, Any], KnownFields]]:
    for number, part in enumerate(content if isinstance(content, list) else ()):
        yield f"part {number} of {location}", part, known_fields
