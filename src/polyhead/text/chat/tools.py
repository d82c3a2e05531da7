"""Functions that an assistant may call: what programs say of them, checked, and how a model is held to call one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from polyhead.errors import UserError, nearest, show
from polyhead.text.chat.base import Call

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAMED = "1 to 64 letters, digits, dots, dashes or underscores"
SHAPE = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
CHOICES = ("auto", "none", "required")
DEEP = 64  # levels of a tool: some formats write each in lines of their own, with blanks for every level before it


class Tool(NamedTuple):
    """A function that may be called."""

    name: str
    schema: dict[str, Any]  # of its arguments, an object
    given: dict[str, Any]  # all that is said of it, as a model reads it


class Tools(NamedTuple):
    """What an answer may call, and what it must."""

    all: tuple[Tool, ...] = ()
    must: tuple[Tool, ...] = ()  # of which one at least is called; if there are none the model decides
    several: bool = True  # whether more than one call may be in an answer

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.all]


def tools_of(given: Any, choice: Any = None, several: bool = True) -> Tools:
    """The tools of a request, in OpenAI's shape, and its tool_choice."""
    return wanted(every(given), chosen(choice), several)


def wanted(tools: Sequence[Tool], choice: str | list[str], several: bool = True) -> Tools:
    """What ``choice`` makes of tools; those that are not to be called are left out."""
    if choice == "none":
        return Tools()
    must = tuple(tool for tool in tools if choice == "required" or [tool.name] == choice)
    if choice != "auto" and not must:
        what, names = show(choice if choice == "required" else choice[0]), [tool.name for tool in tools]
        if not names:
            raise UserError(f"{what} wants a call, and there are no tools")
        raise UserError(f"there is no tool {what}; there are: {', '.join(names)}{nearest(choice[0], names)}")
    return Tools(tuple(tools), must, several)


def every(given: Any) -> tuple[Tool, ...]:
    """The tools in a list of them."""
    if given is None:
        return ()
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise UserError(f"{show(given)} is not a list of tools: [{SHAPE}]")
    tools = tuple(_tool(one, number) for number, one in enumerate(given))
    seen: dict[str, int] = {}
    for number, tool in enumerate(tools):
        if seen.setdefault(tool.name, number) != number:
            raise UserError(f"tool {number} is named {tool.name!r}, as tool {seen[tool.name]} is")
    return tools


def chosen(choice: Any) -> str | list[str]:
    """One of the words of tool_choice, or the name of a function in a list."""
    if choice is None:
        return "auto"
    if isinstance(choice, str) and choice in CHOICES:
        return choice
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        hint = nearest(choice, CHOICES) if isinstance(choice, str) else ""
        named = '{"type": "function", "function": {"name": ...}}'
        raise UserError(f"{show(choice)} is no tool_choice, wanted {', '.join(CHOICES)} or {named}{hint}")
    return [name]


def calls_of(given: Any, number: int) -> tuple[Call, ...]:
    """The calls in a message of that number, in OpenAI's shape."""
    if not given:
        return ()
    if not isinstance(given, list | tuple):
        raise UserError(f"message {number} has the tool_calls {show(given)}, wanted a list of calls")
    return tuple(call_of(one, f"call {i} of message {number}") for i, one in enumerate(given))


def arguments_of(given: Any) -> str:
    """Arguments as all formats write them, of an object or its JSON; a ValueError if they are none."""
    if isinstance(given, str):
        given = json.loads(given, parse_constant=_no_constant) if given.strip() else {}
    if not isinstance(given, Mapping):
        raise ValueError("no object")
    text = json.dumps(dict(given), ensure_ascii=False, allow_nan=False)
    text.encode()  # half of a surrogate pair is no text
    return text


def call_of(given: Any, what: str) -> Call:
    """A call in OpenAI's shape; ``what`` names it in a message."""
    if isinstance(given, Call):
        given = {"id": given.id, "function": {"name": given.name, "arguments": given.arguments}}
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise UserError(f"{what} is {show(given)}, wanted an id and a function with name and arguments")
    name, id = _named(function, what), given.get("id", "")
    if not isinstance(id, str):
        raise UserError(f"{what} has the id {show(id)}, wanted a text")
    try:
        return Call(name, arguments_of(function.get("arguments")), id)
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"{what} has the arguments {show(function.get('arguments'))}, wanted a JSON object as a text"
        ) from None


def _tool(given: Any, number: int) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise UserError(f"tool {number} is {show(given)}, wanted {SHAPE}")
    what, schema = f"tool {number}", function.get("parameters")
    name = _named(function, what)
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    if not isinstance(schema, Mapping):
        raise UserError(
            f"{what} ({name}) has the parameters {show(schema)}, wanted the JSON Schema of an object"
        )
    if schema.get("type", "object") != "object":
        raise UserError(f"{what} ({name}) has parameters of the type {show(schema['type'])}, wanted 'object'")
    if _deeper(given, DEEP):
        raise UserError(f"{what} ({name}) is nested more than {DEEP} levels deep")
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} ({name}) cannot be written as JSON: {error}") from None
    return Tool(name, {"type": "object", **schema}, dict(given))


def _named(function: Mapping[str, Any], what: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(f"{what} has the name {show(name)}, wanted {NAMED}")
    return name


def _deeper(given: Any, levels: int) -> bool:
    """Whether objects and lists stand in each other more than so many deep."""
    if not isinstance(given, Mapping | list | tuple):
        return False
    inner = given.values() if isinstance(given, Mapping) else given
    return not levels or any(_deeper(one, levels - 1) for one in inner)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
