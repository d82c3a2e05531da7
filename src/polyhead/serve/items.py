"""Conversations and tools in the shape of OpenAI's responses, as those of chat completions say the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from polyhead.errors import UserError, show
from polyhead.serve.fields import FUNCTION, NAME, TEXT, text_of
from polyhead.text.chat.base import Message
from polyhead.text.chat.tools import CHOICES, Tool, call_of, chosen, every

PARTS = ("input_text", "output_text", "text")
SAYS = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
KINDS = ("message", "function_call", "function_call_output")
SHAPE = '{"type": "function", "name": ..., "parameters": {...}}'


class Messages(list[Message]):
    """Messages, and the number of the item that each begins with."""

    begins: tuple[int, ...] = (0,)


def messages(given: Any) -> Messages:
    """A text, or items in their order; calls that follow one another, or what the assistant says, are of one message."""
    if isinstance(given, str):
        return Messages([Message("user", given)])
    if not isinstance(given, list) or not given:
        raise UserError(f"{show(given)} is not a text or a list of items")
    found, begins = Messages(), list[int]()
    for number, one in enumerate(given):
        message = _message(one, f"item {number}")
        begins.append(number)
        if found and found[-1].role == message.role == "assistant" and (message.calls or found[-1].calls):
            before = found.pop()
            message = before._replace(
                content=before.content + message.content, calls=before.calls + message.calls
            )
            begins.pop()
        found.append(message)
    found.begins = tuple(begins)
    return found


def _message(given: Any, what: str) -> Message:
    if not isinstance(given, dict):
        raise UserError(f"{what} is {show(given)}, wanted an object with role and content")
    kind = given.get("type") or ("message" if "role" in given else None)
    if kind == "function_call":
        call = {"name": given.get("name"), "arguments": given.get("arguments")}
        return Message("assistant", "", (call_of({"id": given.get("call_id"), "function": call}, what),))
    if kind == "function_call_output":
        if not isinstance(given.get("call_id"), str):
            raise UserError(f"{what} has the call_id {show(given.get('call_id'))}, wanted that of a call")
        return Message("tool", _text(given.get("output"), what, "output"), answers=given["call_id"])
    if kind == "message":
        role = given.get("role")
        if not isinstance(role, str) or role not in SAYS:
            raise UserError(f"{what} has the role {show(role)}, wanted {', '.join(SAYS)}")
        return Message(SAYS[role], _text(given.get("content"), what, "content"))
    raise UserError(f"{what} is of the type {show(kind)}; this service knows {', '.join(KINDS)}")


def _text(given: Any, what: str, key: str) -> str:
    """A text, or the texts of a list in a row."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise UserError(f"{what} has the {key} {show(given)}, wanted a text or a list of texts")
    return "".join(text_of(part, PARTS, what) for part in given)


def tools(given: Any) -> tuple[Tool, ...]:
    """Functions that may be called; what is said of each stands beside its type."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise UserError(f"{show(given)} is not a list of tools: [{SHAPE}]")
    for number, one in enumerate(given):
        if not isinstance(one, dict) or one.get("type") != "function" or "name" not in one:
            raise UserError(f"tool {number} is {show(one)}, wanted {SHAPE}")
    said = [{key: one[key] for key in one if key != "type" and one[key] is not None} for one in given]
    return every([{"type": "function", "function": one} for one in said])


def tool_shown(tool: Tool) -> dict[str, Any]:
    """A tool as it was given."""
    return {"type": "function", "parameters": None, "strict": None, **tool.given["function"]}


def choice(given: Any) -> str | list[str]:
    """One of the words of tool_choice, or the name of a function in a list."""
    if isinstance(given, dict):
        if given.get("type") != "function" or not isinstance(given.get("name"), str):
            named = '{"type": "function", "name": ...}'
            raise UserError(f"{show(given)} is no tool_choice, wanted {', '.join(CHOICES)} or {named}")
        return [given["name"]]
    return chosen(given)


def choice_shown(chosen: str | list[str]) -> Any:
    """A tool_choice as it was given."""
    return chosen if isinstance(chosen, str) else {"type": "function", "name": chosen[0]}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


PART = _object("type", "text", type={"enum": list(PARTS)}, text=TEXT)
SAID = {"anyOf": [TEXT, {"type": "array", "items": PART}]}
ITEM = {
    "anyOf": [
        _object("role", "content", type={"const": "message"}, role={"enum": list(SAYS)}, content=SAID),
        _object("type", "call_id", "name", type={"const": "function_call"}, call_id=TEXT, name=NAME, arguments=TEXT),
        _object("type", "call_id", "output", type={"const": "function_call_output"}, call_id=TEXT, output=SAID),
    ]
}  # fmt: skip
Items = Annotated[
    Messages,
    PlainValidator(messages),
    WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": ITEM, "minItems": 1}]}),
]
TOOL = _object("type", "name", **FUNCTION, name=NAME, description=TEXT, parameters={"type": "object"})
NamedTools = Annotated[
    tuple[Tool, ...],
    PlainValidator(tools),
    WithJsonSchema({"anyOf": [{"type": "array", "items": TOOL}, {"type": "null"}]}),
]
NamedChoice = Annotated[
    str | list[str],
    PlainValidator(choice),
    WithJsonSchema({"anyOf": [{"enum": list(CHOICES)}, _object("type", "name", **FUNCTION, name=NAME)]}),
]
