"""Request validation: types and bounds of every field, lengths of texts, and unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from typing import Any, TypeVar

from pydantic import ValidationError

from polyhead.chat.base import drop_nulls
from polyhead.core.errors import did_you_mean, format_value
from polyhead.core.messages import format_loc, from_validation_error, section_type
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.limits import Limits
from polyhead.serve.openai.schema_fields import MESSAGE_OVERHEAD, Contains, ObjectFields
from polyhead.serve.openai.schemas import ChatBody, JsonObject, RequestBody

SIZED_FIELDS = {
    "prompt", "input", "target", "text", "tokens", "messages", "terminology", "query", "documents",
}  # fmt: skip


InnerObject = tuple[str, str, Mapping[str, Any], ObjectFields]
"""An object inside of a request: its field of the body, its location, its values, and its fields."""


@cache
def _list_fields(kind: type[JsonObject]) -> ObjectFields:
    """The fields of a body or of settings, with the objects inside of them."""
    inner: dict[str, tuple[str, ObjectFields]] = {}
    for name, field in kind.model_fields.items():
        section: Any = section_type(field.annotation)
        if section is not None:
            inner[field.alias or name] = "", _list_fields(section)
        for mark in field.metadata:
            if isinstance(mark, Contains):
                inner[name] = mark
    known_names = {field.alias or name for name, field in kind.model_fields.items()}
    return kind.other_fields._replace(known_names=known_names, inner=inner)


def _iter_objects(
    field: str, location: str, values: Mapping[str, Any], fields: ObjectFields
) -> Iterator[InnerObject]:
    """Yield an object of a field and the objects inside of it; without a location only these."""
    if location:
        yield field, location, values, fields
    place = f" of {location}" if location else ""
    for name, (noun, inner) in fields.inner.items():
        value = values.get(name)
        if isinstance(value, Mapping):
            label = f"{noun}{place}" if noun else f"{location}.{name}".lstrip(".")
            yield from _iter_objects(field or name, label, value, inner)
        for number, one in enumerate(value if isinstance(value, list) else ()):
            if isinstance(one, Mapping):
                yield from _iter_objects(field or name, f"{noun} {number}{place}", one, inner)


def _check_objects(objects: Sequence[InnerObject], strict: bool, warnings: list[str]) -> None:
    """Reject unsupported fields inside of objects, and add warnings about unknown ones.

    With ``strict``, unknown ones are rejected, except those that OpenAI's clients send by default.
    """
    for field, location, values, known in objects:
        for name in sorted(values.keys() & known.neutral_values.keys()):
            neutral = known.neutral_values[name]
            if values[name] is not None and not any(is_same_json(values[name], value) for value in neutral):
                message = f"{name} of {location} is not supported by this service; remove it"
                raise unsupported_parameter_error(field, message)
    for field, location, values, known in objects:
        if len(warnings) >= MAX_REPORTED_FIELDS:
            return
        unknown = drop_nulls(values).keys() - known.known_names - known.own_names
        unknown -= known.neutral_values.keys()
        ignorable = {name for name in unknown & known.client_names if strict or values[name] in ("", [], {})}
        for name in nsmallest(MAX_REPORTED_FIELDS - len(warnings), unknown - ignorable):
            has_hint = name not in known.client_names
            hint = did_you_mean(name, known.known_names) if has_hint else ""
            if strict:
                message = f"unknown field {format_value(name)} of {location}{hint}"
                raise ApiError(400, "unknown_parameter", message, field)
            warnings.append(f"field {format_value(name)} of {location} is ignored{hint}")


def is_same_json(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal; False and 0 are different."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    name: values
    for names, values in (
        ("suffix", ("",)),
        ("best_of typical_p repeat_penalty", (1,)),
        ("mirostat min_tokens", (0,)),
        ("tools functions logits_processors bad_words allowed_token_ids stop stop_token_ids", ([],)),
        ("tool_choice function_call", ("none", "auto")),
        ("modalities", (["text"],)),
        ("rank_fields", ([], ["text"])),
        ("reasoning chat_template_kwargs mm_processor_kwargs", ({},)),
        ("skip_special_tokens spaces_between_special_tokens include_reasoning separate_reasoning", (True,)),
        (
            "background use_beam_search early_stopping include_stop_str_in_output ignore_eos "
            "return_token_ids return_tokens_as_token_ids",
            (False,),
        ),
        (
            "max_tokens_per_doc max_chunks_per_doc targets reasoning_effort prompt previous_response_id "
            "conversation max_tool_calls web_search_options audio guided_json guided_regex guided_choice "
            "guided_grammar truncate_prompt_tokens prompt_logprobs chat_template documents grammar "
            "json_schema",
            (),
        ),
    )
    for name in names.split()
}
"""Unsupported fields of other services that would change the result, with the values that have no effect."""
ALTERNATIVES = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        "use structured_outputs"),
    **dict.fromkeys(("previous_response_id", "conversation"), "answers are not stored: send the whole "
        "conversation in messages"),
    "background": "answers are synchronous",
    "truncate_prompt_tokens": "use truncate",
    "prompt_logprobs": "use echo with logprobs",
    "use_beam_search": "use beam_size",
    "repeat_penalty": "use repetition_penalty",
    "json_schema": "use response_format",
}  # fmt: skip
"""Alternatives to some of them, for the error message."""
IGNORED_FIELDS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "parallel_tool_calls",
})  # fmt: skip
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
    _check_objects(list(_iter_objects("", "", values, _list_fields(body_type))), strict, ignored)
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
        hint = "" if name in IGNORED_FIELDS else did_you_mean(name, body_type.model_fields)
        if strict:
            raise ApiError(400, "unknown_parameter", f"unknown field {format_value(name)}{hint}", name[:64])
        warnings.append(f"field {format_value(name)} is ignored{hint}")
    return warnings


def _check_input_size(body: Any, limits: Limits) -> None:
    """Reject more texts, or longer ones, than the limits allow. A conversation is one text."""
    for name in sorted(SIZED_FIELDS & body.model_fields_set):
        value, label, field = getattr(body, name), name, name
        if isinstance(value, bool):  # tokens of an embeddings request
            continue
        if isinstance(body, ChatBody):
            definitions = [json.dumps(tool.definition, ensure_ascii=False) for tool in body.tools]
            if definitions and body.num_chars <= limits.max_chars:
                label, field = "the conversation with its tools", "tools"
            sizes = [(body.num_chars + sum(len(one) + MESSAGE_OVERHEAD for one in definitions), "characters")]
        else:
            if name == "terminology":
                value = "".join(text for word, phrases in value.items() for text in (word, *phrases))
            texts = [value or ""] if name == "tokens" or isinstance(value, str | None) else value
            max_texts = getattr(limits, body.batch_limit)
            if len(texts) > max_texts:
                message = f"{name} has {len(texts)} texts; the maximum is {max_texts}"
                raise ApiError(400, "too_many_texts", message, name)
            parts = [part for text in texts for part in (text if isinstance(text, tuple) else [text])]
            sizes = [(len(part), "characters" if isinstance(part, str) else "tokens") for part in parts]
        for length, unit in sizes:
            if length > limits.max_chars:
                message = f"{label} has a text of {length} {unit}; the maximum is {limits.max_chars}"
                raise ApiError(400, "text_too_long", message, field)
