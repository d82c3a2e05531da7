"""Request validation: types and bounds of every field, lengths of texts, and unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from heapq import nsmallest
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from polyhead.chat.tools import drop_nulls
from polyhead.core.errors import did_you_mean, format_value
from polyhead.core.messages import format_loc, from_validation_error, section_type
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.limits import Limits
from polyhead.serve.openai.chat_fields import MESSAGE_OVERHEAD, SizedMessages
from polyhead.serve.openai.schema_fields import Contains, ObjectFields
from polyhead.serve.openai.schemas import JsonObject, RequestBody

HINT_CUTOFF = 0.7  # similarity of a name to a known one that is suggested
SIZED_FIELDS = {
    "prompt", "input", "instructions", "target", "text", "tokens", "messages", "terminology", "query",
    "documents",
}  # fmt: skip


class RequestObject(NamedTuple):
    """An object inside of a request."""

    field: str  # field of the body
    location: str
    values: Any
    known_names: Set[str]
    fields: ObjectFields  # other names


@cache
def _list_object_fields(body_type: type[BaseModel]) -> list[tuple[str, Any, Contains | None]]:
    """The fields of a body or of settings that contain objects: name, type of settings, mark of lists."""
    found = []
    for name, field in body_type.model_fields.items():
        kind = section_type(field.annotation)
        mark = next((mark for mark in field.metadata if isinstance(mark, Contains)), None)
        if kind is not None or mark is not None:
            found.append((field.alias or name, kind, mark))
    return found


def _iter_objects(
    field: str, location: str, values: Mapping[str, Any], kind: type[JsonObject]
) -> Iterator[RequestObject]:
    """Yield the objects of a body or of settings: settings, tools, and messages or items with their parts."""
    if location:
        known_names = {inner.alias or name for name, inner in kind.model_fields.items()}
        yield RequestObject(field, location, values, known_names, kind.other_fields)
    for name, inner_kind, mark in _list_object_fields(kind):
        value, inner_field = values.get(name), field or name
        if inner_kind is not None and isinstance(value, Mapping):
            yield from _iter_objects(inner_field, f"{location}.{name}".lstrip("."), value, inner_kind)
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            if mark is not None and isinstance(one, Mapping):
                label = f"{mark.noun} {number}" if mark.noun else name
                yield from _iter_inner(inner_field, label, one, mark.choose_fields(one))


def _iter_inner(
    field: str, location: str, values: Mapping[str, Any], fields: ObjectFields
) -> Iterator[RequestObject]:
    """Yield an object of a field and the objects inside of it."""
    yield RequestObject(field, location, values, fields.known_names, fields)
    for name, (noun, inner) in fields.inner.items():
        value, place = values.get(name), f"of {location}"
        if isinstance(value, Mapping):
            yield from _iter_inner(field, f"{noun} {place}" if noun else f"{location}.{name}", value, inner)
        for number, one in enumerate(value if isinstance(value, list) else ()):
            yield from _iter_inner(field, f"{noun} {number} {place}", one, inner)


def _check_objects(objects: Sequence[RequestObject], strict: bool, warnings: list[str]) -> None:
    """Reject unsupported fields inside of objects, and add warnings about unknown ones.

    With ``strict``, unknown ones are rejected, except those that OpenAI's clients send by default.
    """
    for field, location, fields, _, other in objects:
        for name in sorted(fields.keys() & other.neutral_values.keys()):
            neutral = other.neutral_values[name]
            if fields[name] is not None and not any(is_same_json(fields[name], value) for value in neutral):
                message = f"{name} of {location} is not supported by this service; remove it"
                raise unsupported_parameter_error(field, message)
    for field, location, fields, known_names, other in objects:
        if len(warnings) >= MAX_REPORTED_FIELDS:
            return
        unknown = drop_nulls(fields).keys() - known_names - other.own_names - other.neutral_values.keys()
        ignorable = {name for name in unknown & other.client_names if strict or fields[name] in ("", [], {})}
        for name in nsmallest(MAX_REPORTED_FIELDS - len(warnings), unknown - ignorable):
            has_hint = name not in other.client_names
            hint = did_you_mean(name, known_names, HINT_CUTOFF) if has_hint else ""
            if strict:
                message = f"unknown field {format_value(name)} of {location}{hint}"
                raise ApiError(400, "unknown_parameter", message, field)
            warnings.append(f"field {format_value(name)} of {location} is ignored{hint}")


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
                    name, f"{name}: {getattr(body, name)} is out of range: the maximum is {maximum}"
                )
    _check_input_size(body, limits)
    _check_objects(list(_iter_objects("", "", values, body_type)), strict, ignored)
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


def _check_input_size(body: Any, limits: Limits) -> None:
    """Reject more texts, or longer ones, than the limits allow. A conversation is one text."""
    tool_chars = sum(
        len(json.dumps(tool.definition, ensure_ascii=False)) + MESSAGE_OVERHEAD
        for tool in getattr(body, "tools", ())
    )
    for name in sorted(SIZED_FIELDS & body.model_fields_set):
        value: Any = getattr(body, name)
        # tokens of an embeddings request, text of a response
        if isinstance(value, bool | BaseModel):
            continue
        if isinstance(value, SizedMessages):
            with_tools = tool_chars > 0 and value.num_chars <= limits.max_chars
            label = "the conversation with its tools" if with_tools else name
            _check_length(value.num_chars + tool_chars, limits, label, "tools" if with_tools else name)
            continue
        if name == "instructions":  # they become the first message
            messages: SizedMessages = body.input.with_system(value)
            _check_length(messages.num_chars + tool_chars, limits, "the input with its instructions", name)
            continue
        if name == "terminology":
            value = "".join(text for word, phrases in value.items() for text in (word, *phrases))
        texts = [value or ""] if name == "tokens" or isinstance(value, str | None) else value
        max_texts = getattr(limits, body.batch_limit)
        if len(texts) > max_texts:
            message = f"{name} has {len(texts)} texts; the maximum is {max_texts}"
            raise ApiError(400, "too_many_texts", message, name)
        for one in texts:
            for text in one if isinstance(one, tuple) else [one]:
                unit = "characters" if isinstance(text, str) else "tokens"
                _check_length(len(text), limits, name, name, unit)


def _check_length(length: int, limits: Limits, label: str, field: str, unit: str = "characters") -> None:
    if length > limits.max_chars:
        message = f"{label} has a text of {length} {unit}; the maximum is {limits.max_chars}"
        raise ApiError(400, "text_too_long", message, field)
