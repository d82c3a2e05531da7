"""Input items and tools in the format of OpenAI's responses endpoint, converted to messages and tools."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from polyhead.chat.base import MESSAGE_ROLE_ALIASES, ROLES_WITHOUT_CONTENT, Message
from polyhead.chat.tools import TOOL_CHOICES, Tool, parse_tool_call, validate_tool_choice
from polyhead.core.errors import UserError, format_value
from polyhead.serve.openai.input_limits import SizedMessages
from polyhead.serve.openai.schema_fields import (
    FUNCTION_TYPE,
    NAME_SCHEMA,
    TEXT_SCHEMA,
    object_schema,
    parse_tools,
    read_text_part,
)

REASONING_PART_TYPES = ("reasoning_text",)
TEXT_PART_TYPES = ("input_text", "output_text", "text")
ROLE_MAP = {"user": "user", "assistant": "assistant", "system": "system", **MESSAGE_ROLE_ALIASES}
ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")
TOOL_EXAMPLE = '{"type": "function", "name": ..., "parameters": {...}}'


class ItemMessages(SizedMessages):
    """Messages, and for each the index of its first item."""

    item_indices: tuple[int, ...] = (0,)


def parse_items(value: Any) -> ItemMessages:
    """Parse a text or a list of input items to messages.

    Consecutive assistant items (reasoning, text and tool calls) become one message.
    """
    if isinstance(value, str):
        return ItemMessages([Message("user", value)])
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a text or a list of items")
    messages, indices, after_reasoning = ItemMessages(), list[int](), False
    for number, item in enumerate(value):
        message = _parse_item(item, f"item {number}")
        indices.append(number)
        if (
            messages
            and messages[-1].role == message.role == "assistant"
            and (message.tool_calls or messages[-1].tool_calls or after_reasoning)
            and not message.reasoning
        ):
            previous = messages.pop()
            message = previous._replace(
                content=previous.content + message.content,
                tool_calls=previous.tool_calls + message.tool_calls,
                reasoning=previous.reasoning,
            )
            indices.pop()
        messages.append(message)
        after_reasoning = item.get("type") == "reasoning"
    messages.item_indices = tuple(indices)
    return messages


def _parse_item(value: Any, label: str) -> Message:
    if not isinstance(value, dict):
        raise UserError(f"{label} is {format_value(value)}, expected an object with role and content")
    kind = value.get("type") or ("message" if "role" in value else None)
    if kind == "function_call":
        call = {"name": value.get("name"), "arguments": value.get("arguments")}
        return Message(
            "assistant", "", (parse_tool_call({"id": value.get("call_id"), "function": call}, label),)
        )
    if kind == "reasoning":
        return Message("assistant", "", reasoning=_parse_reasoning(value, label))
    if kind == "function_call_output":
        if not isinstance(value.get("call_id"), str):
            raise UserError(
                f"{label} has the call_id {format_value(value.get('call_id'))}, expected the "
                "call_id of a call"
            )
        return Message("tool", _parse_content(value, label, "output", "tool"), tool_call_id=value["call_id"])
    if kind == "message":
        role = value.get("role")
        if not isinstance(role, str) or role not in ROLE_MAP:
            raise UserError(f"{label} has the role {format_value(role)}, expected {', '.join(ROLE_MAP)}")
        return Message(ROLE_MAP[role], _parse_content(value, label, "content", role))
    raise UserError(f"{label} is of the type {format_value(kind)}; supported: {', '.join(ITEM_TYPES)}")


def _parse_reasoning(item: dict[str, Any], label: str) -> str:
    """Return the text of a reasoning item; "" if it has only a summary."""
    parts = item.get("content") or []
    if not isinstance(parts, list):
        raise UserError(f"{label} has the content {format_value(parts)}, expected a list of texts")
    return "".join(read_text_part(part, REASONING_PART_TYPES, label) for part in parts)


def _parse_content(item: dict[str, Any], label: str, key: str, role: str) -> str:
    """Return the text in ``key``, or its concatenated text parts."""
    value = item.get(key)
    if value is None and role in ROLES_WITHOUT_CONTENT:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise UserError(f"{label} has the {key} {format_value(value)}, expected a string or a list of texts")
    return "".join(read_text_part(part, TEXT_PART_TYPES, label) for part in value)


def parse_response_tools(value: Any) -> tuple[Tool, ...]:
    """Parse function tools; the fields of the function are on the same level as ``type``."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UserError(f"{format_value(value)} is not a list of tools: [{TOOL_EXAMPLE}]")
    for number, tool in enumerate(value):
        if not isinstance(tool, dict) or tool.get("type") != "function" or "name" not in tool:
            raise UserError(f"tool {number} is {format_value(tool)}, expected {TOOL_EXAMPLE}")
    functions = [{key: tool[key] for key in tool if key != "type"} for tool in value]
    return parse_tools([{"type": "function", "function": tool} for tool in functions])


def tool_to_openai(tool: Tool) -> dict[str, Any]:
    """Return the tool in the format of the request."""
    return {"type": "function", "parameters": None, "strict": None, **tool.definition["function"]}


def parse_response_tool_choice(value: Any) -> str | list[str]:
    """Parse ``tool_choice``: a mode, or the name of a function in a list."""
    if isinstance(value, dict):
        if value.get("type") != "function" or not isinstance(value.get("name"), str):
            example = '{"type": "function", "name": ...}'
            raise UserError(
                f"{format_value(value)} is not a tool_choice, expected {', '.join(TOOL_CHOICES)} or {example}"
            )
        return [value["name"]]
    return validate_tool_choice(value)


def tool_choice_to_openai(tool_choice: str | list[str]) -> Any:
    """Return the tool choice in the format of the request."""
    return tool_choice if isinstance(tool_choice, str) else {"type": "function", "name": tool_choice[0]}


ITEM_PART_SCHEMA = object_schema("type", "text", type={"enum": list(TEXT_PART_TYPES)}, text=TEXT_SCHEMA)
REASONING_PART_SCHEMA = object_schema(
    "type", "text", type={"enum": list(REASONING_PART_TYPES)}, text=TEXT_SCHEMA
)
CONTENT_SCHEMA = {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": ITEM_PART_SCHEMA}]}
ITEM_SCHEMA = {
    "anyOf": [
        object_schema("role", "content", type={"const": "message"}, role={"enum": list(ROLE_MAP)},
            content=CONTENT_SCHEMA),
        object_schema("type", type={"const": "reasoning"},
            content={"type": "array", "items": REASONING_PART_SCHEMA}),
        object_schema("type", "call_id", "name", type={"const": "function_call"}, call_id=TEXT_SCHEMA,
            name=NAME_SCHEMA, arguments=TEXT_SCHEMA),
        object_schema("type", "call_id", "output", type={"const": "function_call_output"},
            call_id=TEXT_SCHEMA, output=CONTENT_SCHEMA),
    ]
}  # fmt: skip
Items = Annotated[
    ItemMessages,
    PlainValidator(parse_items),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, {"type": "array", "items": ITEM_SCHEMA, "minItems": 1}]}),
]
RESPONSE_TOOL_SCHEMA = object_schema(
    "type", "name", **FUNCTION_TYPE, name=NAME_SCHEMA, description=TEXT_SCHEMA, parameters={"type": "object"}
)
ResponseTools = Annotated[
    tuple[Tool, ...],
    PlainValidator(parse_response_tools),
    WithJsonSchema({"type": "array", "items": RESPONSE_TOOL_SCHEMA}),
]
ResponseToolChoice = Annotated[
    str | list[str],
    PlainValidator(parse_response_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(TOOL_CHOICES)},
                object_schema("type", "name", **FUNCTION_TYPE, name=NAME_SCHEMA),
            ]
        }
    ),
]
