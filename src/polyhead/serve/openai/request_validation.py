"""Request validation: types and bounds of every field, and unknown fields."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, TypeVar

from pydantic import ValidationError

from polyhead.chat.tools import drop_nulls
from polyhead.core.errors import did_you_mean, format_value
from polyhead.core.messages import format_loc, from_validation_error
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.limits import Limits
from polyhead.serve.openai.input_limits import check_input_size
from polyhead.serve.openai.schemas import RequestBody
from polyhead.serve.openai.unknown_fields import (
    HINT_CUTOFF,
    find_unknown_fields,
    find_unsupported_field,
    is_same_json,
)

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
