"""Request validation: types and bounds of every field, and unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from polyhead.chat.tools import drop_nulls
from polyhead.core.errors import did_you_mean, format_value
from polyhead.core.messages import format_loc, from_validation_error
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.limits import Limits
from polyhead.serve.openai.input_limits import check_input_size
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


NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "reasoning": ({},),
    "background": (False,),
    **dict.fromkeys(("rank_fields",), ([], ["text"])),
    **dict.fromkeys(("max_tokens_per_doc", "max_chunks_per_doc"), ()),
    **dict.fromkeys(("logits_processors", "bad_words", "allowed_token_ids"), ([],)),
    **dict.fromkeys(("chat_template_kwargs", "mm_processor_kwargs"), ({},)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "include_reasoning",
        "separate_reasoning"), (True,)),
    **dict.fromkeys(("use_beam_search", "early_stopping", "include_stop_str_in_output", "ignore_eos",
        "return_token_ids", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("typical_p", "repeat_penalty"), (1,)),
    **dict.fromkeys(("mirostat", "min_tokens"), (0,)),
    **dict.fromkeys(("stop", "stop_token_ids"), ([],)),
    **dict.fromkeys(
        ("targets", "reasoning_effort", "prompt", "previous_response_id", "conversation", "max_tool_calls",
         "web_search_options", "audio", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
         "truncate_prompt_tokens", "prompt_logprobs", "chat_template", "documents", "grammar", "json_schema"),
        (),
    ),
}  # fmt: skip
"""Unsupported fields of other services that would change the result, with the values that have no effect."""
ALTERNATIVES = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        "use structured_outputs"),
    **dict.fromkeys(("previous_response_id", "conversation"), "answers are not stored: send the whole "
        "conversation in input"),
    "background": "answers are synchronous",
    "truncate_prompt_tokens": "use truncate",
    "prompt_logprobs": "use echo with logprobs",
    "use_beam_search": "use beam_size",
    "repeat_penalty": "use repetition_penalty",
    "json_schema": "use response_format",
}  # fmt: skip
"""Alternatives to some of them, for the error message."""
IGNORED_FIELDS = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
}
"""Fields of other services that do not change the result."""
MAX_REPORTED_FIELDS = 4  # maximum number of unknown fields in a report

B = TypeVar("B", bound=RequestBody)


def validate_body(
    body_type: type[B], values: dict[str, Any], limits: Limits, strict: bool = False
) -> tuple[B, list[str]]:
    """Return the validated body and warnings about unknown fields.

    A null field counts as absent. An invalid field raises an ApiError that names it.
    """
    values = drop_nulls(values)
    ignored = _check_unknown_fields(body_type, values, strict)
    try:
        body = body_type.model_validate(
            {name: values[name] for name in values if name in body_type.model_fields}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid_value_error(
            format_loc(first["loc"][:1]),
            "; ".join([*str(from_validation_error(error)).splitlines(), *ignored])[:1000],
        ) from None
    for name, info in body_type.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and "limit" in extra and name in body.model_fields_set:
            maximum = getattr(limits, str(extra["limit"]))
            if getattr(body, name) > maximum:
                raise invalid_value_error(
                    name,
                    f"{name}: {getattr(body, name)} is out of range: the maximum is {maximum}",
                )
    check_input_size(body, limits)
    if unsupported := find_unsupported_field(body_type, values):
        raise unsupported_parameter_error(
            unsupported.field,
            f"{unsupported.name} of {unsupported.location} is not supported by this service; remove it",
        )
    for field, name, location, hint in find_unknown_fields(
        body_type, values, strict, MAX_REPORTED_FIELDS - len(ignored)
    ):
        if strict:
            raise ApiError(
                400, "unknown_parameter", f"unknown field {format_value(name)} of {location}{hint}", field
            )
        ignored.append(f"field {format_value(name)} of {location} is ignored{hint}")
    return body, ignored


def _check_unknown_fields(body_type: type[RequestBody], values: dict[str, Any], strict: bool) -> list[str]:
    """Return warnings about unknown fields; a field that would change the result is rejected."""
    for name in sorted(values.keys() & NEUTRAL_VALUES.keys() - body_type.model_fields.keys()):
        given = drop_nulls(values[name]) if isinstance(values[name], dict) else values[name]
        if not any(is_same_json(given, value) for value in NEUTRAL_VALUES[name]):
            raise unsupported_parameter_error(
                name, f"{name} is not supported by this service; {ALTERNATIVES.get(name, 'remove it')}"
            )
    warnings = []
    unknown = values.keys() - body_type.model_fields.keys() - NEUTRAL_VALUES.keys()
    for name in nsmallest(MAX_REPORTED_FIELDS, unknown - IGNORED_FIELDS if strict else unknown):
        hint = "" if name in IGNORED_FIELDS else did_you_mean(name, body_type.model_fields, HINT_CUTOFF)
        if strict:
            raise ApiError(400, "unknown_parameter", f"unknown field {format_value(name)}{hint}", name[:64])
        warnings.append(f"field {format_value(name)} is ignored{hint}")
    return warnings
