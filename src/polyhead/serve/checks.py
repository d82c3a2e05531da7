"""Checks what a request says: every field by its type and bounds, and what has no meaning here."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, TypeVar

from pydantic import ValidationError

from polyhead.errors import explain, nearest, path, show
from polyhead.serve.bodies import Body
from polyhead.serve.inner_keys import odd_keys
from polyhead.serve.limits import Limits
from polyhead.serve.refusal import Refusal, invalid, unsupported
from polyhead.serve.sizes import check_size

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("", None),
    "best_of": (1, None),
    "targets": (None,),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "function_call": ("none", "auto", None),
    "modalities": (["text"], None),
    "reasoning_effort": (None,),
    "reasoning": ({}, {"effort": None}, {"effort": None, "summary": None}, None),
    "prompt": (None,),
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (False, None),
    "max_tool_calls": (None,),
    "web_search_options": (None,),
    **dict.fromkeys(("audio", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), (None,)),
}
"""Fields of other services that would change an answer if they were kept, with the values that ask for nothing."""
INSTEAD = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), "give structured_outputs"),
    **dict.fromkeys(("previous_response_id", "conversation"), "it keeps no answers: send all that was said in input"),
    "background": "it answers while you wait",
}  # fmt: skip
"""What to give in place of some of them."""
HARMLESS = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
}
"""Fields of other services that change no answer."""
TOLD = 4  # fields without a meaning that are told, of however many

B = TypeVar("B", bound=Body)


def read(kind: type[B], given: dict[str, Any], limits: Limits, strict: bool = False) -> tuple[B, list[str]]:
    """A checked body, and what of it has no meaning here; every mistake is a Refusal that names the field."""
    ignored = _unknown(kind, given, strict)
    try:
        body = kind.model_validate({name: given[name] for name in given if name in kind.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid(
            path(first["loc"][:1]), "; ".join([*str(explain(error)).splitlines(), *ignored])[:1000]
        ) from None
    for name, info in kind.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and "limit" in extra and name in body.model_fields_set:
            most = getattr(limits, str(extra["limit"]))
            if getattr(body, name) > most:
                raise invalid(
                    name, f"{name}: {getattr(body, name)} is out of range: this service allows {most} at most"
                )
    check_size(body, limits)
    for field, name, where, hint in odd_keys(kind, given, strict, TOLD - len(ignored)):
        if strict:
            raise Refusal(400, "unknown_parameter", f"unknown field {show(name)} of {where}{hint}", field)
        ignored.append(f"field {show(name)} of {where} is ignored{hint}")
    return body, ignored


def _unknown(kind: type[Body], given: dict[str, Any], strict: bool) -> list[str]:
    """What is said of fields that have no meaning here; one that would have changed the answer is refused."""
    for name in sorted(given.keys() & NEUTRAL.keys() - kind.model_fields.keys()):
        if not any(_alike(given[name], value) for value in NEUTRAL[name]):
            raise unsupported(
                name, f"{name} is not supported by this service; {INSTEAD.get(name, 'leave it out')}"
            )
    told = []
    unknown = given.keys() - kind.model_fields.keys() - NEUTRAL.keys()
    # where a field is missing, one that is only a little like another was meant for it
    lacks = any(field.is_required() and key not in given for key, field in kind.model_fields.items())
    for name in nsmallest(TOLD, unknown - HARMLESS if strict else unknown):
        hint = "" if name in HARMLESS else nearest(name, kind.model_fields, 0.75 if lacks else 0.5)
        if strict:
            raise Refusal(400, "unknown_parameter", f"unknown field {show(name)}{hint}", name[:64])
        told.append(f"field {show(name)} is ignored{hint}")
    return told


def _alike(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same, of which false is no 0."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
