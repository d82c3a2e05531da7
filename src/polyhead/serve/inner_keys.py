"""Keys within messages, items and their parts that have no meaning here; the service tells of them as of a body's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from polyhead.errors import nearest
from polyhead.serve.bodies import Body, ChatBody, ResponseBody


class Keys(NamedTuple):
    """What may stand in one place."""

    known: frozenset[str]
    # by OpenAI's clients too: they change nothing, and are told where they say something
    sent: frozenset[str]
    # this service has said these itself: they come back as they were
    ours: frozenset[str] = frozenset()


class Odd(NamedTuple):
    """A key that changes nothing."""

    field: str  # of the body
    name: str
    where: str
    hint: str


def _keys(known: str, sent: str = "", ours: str = "") -> Keys:
    return Keys(frozenset(known.split()), frozenset(sent.split()), frozenset(ours.split()))


FIELDS: dict[type[Body], str] = {ChatBody: "messages", ResponseBody: "input"}
MESSAGE = _keys("role content tool_calls tool_call_id", "name refusal annotations audio function_call parsed")
PART = _keys("type text", "prompt_cache_breakpoint")
ITEMS = {
    "message": _keys("type role content", "phase", "id status"),
    "function_call": _keys("type call_id name arguments", "caller namespace async async_ parsed_arguments", "id status"),
    "function_call_output": _keys("type call_id output", "name caller namespace", "id status"),
}  # fmt: skip
ITEM_PART = _keys("type text", "annotations prompt_cache_breakpoint parsed", "logprobs")


def odd_keys(kind: type[Body], given: Mapping[str, Any], strict: bool, most: int) -> list[Odd]:
    """Keys without a meaning in a body that was found right, the first ``most``; if ``strict`` none that clients send by themselves."""
    return list(islice(_odd(kind, given, strict, most), most))


def _odd(kind: type[Body], given: Mapping[str, Any], strict: bool, most: int) -> Iterator[Odd]:
    for where, place, keys in _places(kind, given):
        unknown = place.keys() - keys.known - keys.ours
        harmless = {name for name in unknown & keys.sent if strict or place[name] in (None, "", [], {})}
        for name in nsmallest(most, unknown - harmless):
            yield Odd(FIELDS[kind], name, where, "" if name in keys.sent else nearest(name, keys.known))


def _places(kind: type[Body], given: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Keys]]:
    """Every message or item with its name, and every part of one."""
    if kind is ChatBody:
        for number, message in enumerate(given["messages"]):
            yield f"message {number}", message, MESSAGE
            yield from _parts(f"message {number}", message.get("content"), PART)
    elif kind is ResponseBody and not isinstance(given["input"], str):
        for number, item in enumerate(given["input"]):
            keys = ITEMS[item.get("type") or "message"]
            yield f"item {number}", item, keys
            said = item.get("output" if "output" in keys.known else "content")
            yield from _parts(f"item {number}", said, ITEM_PART)


def _parts(where: str, said: Any, keys: Keys) -> Iterator[tuple[str, Mapping[str, Any], Keys]]:
    for number, part in enumerate(said if isinstance(said, list) else ()):
        yield f"part {number} of {where}", part, keys
