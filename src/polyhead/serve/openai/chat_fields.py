"""Messages, input items and tools of a request: their fields, and their conversion to those of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from polyhead.chat.base import MESSAGE_ROLE_ALIASES, MESSAGE_ROLES, ROLES_WITHOUT_CONTENT, Message
from polyhead.chat.tools import (
    TOOL_CHOICES,
    Tool,
    drop_nulls,
    parse_tool_call,
    parse_tool_calls,
    validate_tool_choice,
    validate_tools,
)
from polyhead.core.errors import UserError, format_value
from polyhead.serve.openai.schema_fields import (
    TEXT_SCHEMA,
    Contains,
    ObjectFields,
    array_schema,
    object_fields,
)

MESSAGE_OVERHEAD = 16  # additional characters per message, about the cost of its special tokens
ROLE_MAP = {"user": "user", "assistant": "assistant", "system": "system", **MESSAGE_ROLE_ALIASES}
TOOL_EXAMPLE = '{"type": "function", "name": ..., "parameters": {...}}'

PART_KINDS, REASONING_KINDS = ("text",), ("reasoning_text",)
ITEM_PART_KINDS = ("input_text", "output_text", "text")
_NAME = {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}}
_FUNCTION_TYPE = {"type": {"const": "function"}}
_CALLABLE = {"description": TEXT_SCHEMA, "parameters": {"type": "object"}}


def _text_part(*kinds: str, client_names: str, own_names: str = "") -> ObjectFields:
    kind = {"const": "text"} if kinds == PART_KINDS else {"enum": list(kinds)}
    return object_fields("type text", {"type": kind, "text": TEXT_SCHEMA}, client_names, own_names)


PART_FIELDS = _text_part(*PART_KINDS, client_names="prompt_cache_breakpoint")
ITEM_PART_FIELDS = _text_part(
    *ITEM_PART_KINDS, client_names="annotations prompt_cache_breakpoint parsed", own_names="logprobs"
)
CALLED_FUNCTION_FIELDS = object_fields("name", _NAME | {"arguments": TEXT_SCHEMA}, "parsed_arguments")
CALL_FIELDS = object_fields(
    "function",
    {"id": TEXT_SCHEMA, **_FUNCTION_TYPE, "function": CALLED_FUNCTION_FIELDS.schema},
    "index",
    function=("the function", CALLED_FUNCTION_FIELDS),
)
MESSAGE_FIELDS = object_fields(
    "role",
    {
        "role": {"enum": [*MESSAGE_ROLES, *MESSAGE_ROLE_ALIASES]},
        "content": {"anyOf": [TEXT_SCHEMA, array_schema(PART_FIELDS.schema)]},
        "tool_calls": {"type": "array", "items": CALL_FIELDS.schema},
        "tool_call_id": TEXT_SCHEMA,
        "reasoning": TEXT_SCHEMA,
        "reasoning_content": TEXT_SCHEMA,
    },
    "name refusal annotations audio function_call parsed",
    content=("part", PART_FIELDS),
    tool_calls=("call", CALL_FIELDS),
)
_CONTENT = {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": ITEM_PART_FIELDS.schema}]}
_REASONING_PARTS = {"type": "array", "items": _text_part(*REASONING_KINDS, client_names="").schema}
ITEM_FIELDS = {
    "message": object_fields(
        "role content",
        {"type": {"const": "message"}, "role": {"enum": list(ROLE_MAP)}, "content": _CONTENT},
        "phase", "id status", content=("part", ITEM_PART_FIELDS),
    ),
    "reasoning": object_fields(
        "type", {"type": {"const": "reasoning"}, "content": _REASONING_PARTS},
        "encrypted_content", "id status summary", content=("part", ITEM_PART_FIELDS),
    ),
    "function_call": object_fields(
        "type call_id name",
        {"type": {"const": "function_call"}, "call_id": TEXT_SCHEMA, **_NAME, "arguments": TEXT_SCHEMA},
        "caller namespace async async_ parsed_arguments", "id status",
    ),
    "function_call_output": object_fields(
        "type call_id output",
        {"type": {"const": "function_call_output"}, "call_id": TEXT_SCHEMA, "output": _CONTENT},
        "name caller namespace", "id status", output=("part", ITEM_PART_FIELDS),
    ),
}  # fmt: skip
FUNCTION_FIELDS = object_fields("name", _NAME | _CALLABLE, own_names="strict")
TOOL_FIELDS = object_fields(
    "function",
    {**_FUNCTION_TYPE, "function": FUNCTION_FIELDS.schema},
    function=("the function", FUNCTION_FIELDS),
)
CHOSEN_FUNCTION_FIELDS = object_fields("name", dict(_NAME))
TOOL_CHOICE_FIELDS = object_fields(
    "function",
    {**_FUNCTION_TYPE, "function": CHOSEN_FUNCTION_FIELDS.schema},
    function=("", CHOSEN_FUNCTION_FIELDS),
)
RESPONSE_TOOL_FIELDS = object_fields(
    "type name", {**_FUNCTION_TYPE, **_NAME, **_CALLABLE}, own_names="strict"
)
RESPONSE_TOOL_CHOICE_FIELDS = object_fields("type name", {**_FUNCTION_TYPE, **_NAME})


class SizedMessages(list[Message]):
    """Messages of a conversation, which are measured once, and for each the index of its first item."""

    item_indices: tuple[int, ...] = (0,)

    @cached_property
    def num_chars(self) -> int:
        """Characters of all messages and calls, and ``MESSAGE_OVERHEAD`` for each."""
        contents = [message.content + message.reasoning for message in self]
        calls = [call.name + call.arguments for message in self for call in message.tool_calls]
        return sum(len(text) + MESSAGE_OVERHEAD for text in (*contents, *calls))

    def with_system(self, text: str) -> SizedMessages:
        """Return the conversation after a system message."""
        messages = SizedMessages([Message("system", text), *self])
        messages.num_chars = len(text) + MESSAGE_OVERHEAD + self.num_chars
        return messages


def parse_chat_messages(value: Any) -> SizedMessages:
    """Parse the messages of a conversation; the role developer becomes system."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a list of messages")
    return SizedMessages(_parse_message(message, number) for number, message in enumerate(value))


def _parse_message(value: Any, number: int) -> Message:
    label = f"message {number}"
    if not isinstance(value, dict):
        raise UserError(f"{label} is {format_value(value)}, expected an object with role and content")
    for name in ("function_call", "audio"):
        if value.get(name):
            raise UserError(f"{label} has {name}, which is not supported; supported: text and tool_calls")
    role, tool_call_id = value.get("role"), value.get("tool_call_id")
    if not isinstance(role, str):
        raise UserError(f"{label} has the role {format_value(role)}, expected {', '.join(MESSAGE_ROLES)}")
    calls = parse_tool_calls(value.get("tool_calls"), number)
    reasoning = drop_nulls(value).get("reasoning_content", value.get("reasoning")) or ""
    if not isinstance(reasoning, str):
        raise UserError(f"{label} has the reasoning {format_value(reasoning)}, expected a string")
    content = _read_content(value, label, "content", role, PART_KINDS)
    if not isinstance(tool_call_id, str | None):
        raise UserError(f"{label} has the tool_call_id {format_value(tool_call_id)}, expected a string")
    return Message(MESSAGE_ROLE_ALIASES.get(role, role), content, calls, tool_call_id or "", reasoning)


def parse_items(value: Any) -> SizedMessages:
    """Parse a text or a list of input items to messages.

    Consecutive assistant items (reasoning, text and tool calls) become one message.
    """
    if isinstance(value, str):
        return SizedMessages([Message("user", value)])
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a text or a list of items")
    messages, indices, after_reasoning = SizedMessages(), list[int](), False
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
    if kind == "reasoning":  # it may have only a summary
        parts = value.get("content") or []
        if not isinstance(parts, list):
            raise UserError(f"{label} has the content {format_value(parts)}, expected a list of texts")
        return Message("assistant", "", reasoning=_join_parts(parts, REASONING_KINDS, label))
    if kind == "function_call_output":
        if not isinstance(value.get("call_id"), str):
            raise UserError(
                f"{label} has the call_id {format_value(value.get('call_id'))}, expected the "
                "call_id of a call"
            )
        output = _read_content(value, label, "output", "tool", ITEM_PART_KINDS)
        return Message("tool", output, tool_call_id=value["call_id"])
    if kind == "message":
        role = value.get("role")
        if not isinstance(role, str) or role not in ROLE_MAP:
            raise UserError(f"{label} has the role {format_value(role)}, expected {', '.join(ROLE_MAP)}")
        return Message(ROLE_MAP[role], _read_content(value, label, "content", role, ITEM_PART_KINDS))
    raise UserError(f"{label} is of the type {format_value(kind)}; supported: {', '.join(ITEM_FIELDS)}")


def _read_content(item: dict[str, Any], label: str, key: str, role: str, kinds: Sequence[str]) -> str:
    """Return the text in ``key`` of a message or an item, or its concatenated text parts."""
    content = item.get(key)
    if content is None and role in ROLES_WITHOUT_CONTENT:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        problem = f"has the {key} {format_value(content)}, expected a string or a list of texts"
        raise UserError(f"{label} {problem}")
    return _join_parts(content, kinds, label)


def _join_parts(parts: Sequence[Any], kinds: Sequence[str], label: str) -> str:
    """Join the texts of content parts of ``label``, whose type must be one of ``kinds``."""
    for part in parts:
        fields = part if isinstance(part, dict) else {"type": part}
        if fields.get("type") not in kinds or not isinstance(fields.get("text"), str):
            raise UserError(
                f"{label} has a part {format_value(fields.get('type'))}; this model supports text only: "
                f"{{type: {kinds[0]}, text: ...}}"
            )
    return "".join(part["text"] for part in parts)


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Parse function tools, without their unknown fields, which would be a part of the prompt."""
    names = {*FUNCTION_FIELDS.known_names, *FUNCTION_FIELDS.own_names}
    tools = []
    for tool in validate_tools(value):
        function = {key: part for key, part in tool.definition["function"].items() if key in names}
        kind = {key: part for key, part in tool.definition.items() if key == "type"}
        tools.append(tool._replace(definition=kind | {"function": function}))
    return tuple(tools)


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


def parse_response_tool_choice(value: Any) -> str | list[str]:
    """Parse ``tool_choice``: a mode, or the name of a function in a list."""
    if not isinstance(value, dict):
        return validate_tool_choice(value)
    if value.get("type") != "function" or not isinstance(value.get("name"), str):
        example = '{"type": "function", "name": ...}'
        raise UserError(
            f"{format_value(value)} is not a tool_choice, expected {', '.join(TOOL_CHOICES)} or {example}"
        )
    return [value["name"]]


def _choice_schema(fields: ObjectFields) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"enum": list(TOOL_CHOICES)}, fields.schema]})


MessageList = Annotated[
    SizedMessages,
    PlainValidator(parse_chat_messages),
    WithJsonSchema(array_schema(MESSAGE_FIELDS.schema)),
    Contains("message", lambda _: MESSAGE_FIELDS),
]
_ITEM_SCHEMA = {"anyOf": [fields.schema for fields in ITEM_FIELDS.values()]}
Items = Annotated[
    SizedMessages,
    PlainValidator(parse_items),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, array_schema(_ITEM_SCHEMA)]}),
    Contains("item", lambda item: ITEM_FIELDS[item.get("type") or "message"]),
]
ToolList = Annotated[
    tuple[Tool, ...],
    PlainValidator(parse_tools),
    WithJsonSchema({"type": "array", "items": TOOL_FIELDS.schema}),
    Contains("tool", lambda _: TOOL_FIELDS),
]
ResponseTools = Annotated[
    tuple[Tool, ...],
    PlainValidator(parse_response_tools),
    WithJsonSchema({"type": "array", "items": RESPONSE_TOOL_FIELDS.schema}),
    Contains("tool", lambda _: RESPONSE_TOOL_FIELDS),
]
ToolChoiceField = Annotated[
    str | list[str],
    PlainValidator(validate_tool_choice),
    _choice_schema(TOOL_CHOICE_FIELDS),
    Contains("", lambda _: TOOL_CHOICE_FIELDS),
]
ResponseToolChoice = Annotated[
    str | list[str],
    PlainValidator(parse_response_tool_choice),
    _choice_schema(RESPONSE_TOOL_CHOICE_FIELDS),
    Contains("", lambda _: RESPONSE_TOOL_CHOICE_FIELDS),
]
