"""Messages and tools of a conversation, their validation, and the pieces of text that a format renders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.core.json_io import reject_constant
from polyhead.core.registry import CHAT

MESSAGE_ROLES = ("system", "user", "assistant", "tool")
MESSAGE_ROLE_ALIASES = {"developer": "system"}
ROLES_WITHOUT_CONTENT = ("assistant", "tool")  # their content may be missing: it is empty
PieceKind = Literal["text", "token", "mark", "role", "template"]
_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_RULE = "1 to 64 letters, digits, dots, dashes or underscores"
_TOOL_SHAPE = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
TOOL_CHOICES = ("auto", "none", "required")
# nesting of a tool definition: some formats indent it, one line per item
_MAX_DEPTH = 64


class ToolCall(NamedTuple):
    """A function call of the assistant."""

    name: str
    arguments: str = "{}"  # a JSON object
    id: str = ""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str  # system, user, assistant or tool
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str = ""  # in a tool message: the id of the call that it answers
    reasoning: str = ""  # of the assistant, before its content


class Tool(NamedTuple):
    """A function that the assistant may call."""

    name: str
    schema: dict[str, Any]  # JSON Schema of its arguments, an object
    definition: dict[str, Any]  # the complete definition for the prompt


class ToolChoice(NamedTuple):
    """The tools that an answer may call, and those that it must."""

    all_tools: tuple[Tool, ...] = ()
    # at least one of these must be called; if empty the model decides
    required_tools: tuple[Tool, ...] = ()
    parallel_tool_calls: bool = True  # whether an answer may have more than one call

    @property
    def tool_names(self) -> list[str]:
        return [tool.name for tool in self.all_tools]


class ChatPiece(NamedTuple):
    """A piece of a rendered conversation.

    A "token" is a special token of that name. A "role" is the special token with the role "bos_token", which
    may be missing, or "eos_token". A "mark" is a special token if the vocabulary has one of that name, else
    plain text. "template" is text of a Jinja template, in which the names of special tokens are these tokens.
    """

    text: str
    kind: PieceKind = "text"
    is_assistant: bool = False  # whether it is output of the assistant


class ChatFormat(Protocol):
    """A chat format: renders conversations as text and special tokens."""

    end_tokens: tuple[ChatPiece, ...]  # any of these tokens ends the assistant's turn
    trim_content: bool  # whether whitespace around an answer belongs to the format

    @property
    def template(self) -> str:
        """The format as a Jinja template, for transformers' apply_chat_template."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """Render a conversation, with ``add_generation_prompt`` up to the start of an assistant turn.

        An order of roles that the format does not allow raises UserError.
        """


EOS = ChatPiece("eos_token", "role")


def merge_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation with at most one system message, the first, for formats without a place for others.

    The system messages at the start become one. A later one becomes a part of the user message after it, or
    else of the one before it, as in llama.cpp and LiteLLM; without either it is a user message.
    """
    if all(message.role != "system" for message in messages[1:]):
        return messages
    merged: list[Message] = []
    pending: list[str] = []  # system messages that have no place yet
    for message in messages:
        if message.role == "system":
            pending.append(message.content)
            continue
        if pending and not merged:
            merged.append(Message("system", "\n\n".join(pending)))
        elif pending and message.role == "user":
            message = message._replace(content="\n\n".join([*pending, message.content]))
        elif pending and merged[-1].role == "user":
            merged[-1] = merged[-1]._replace(content="\n\n".join([merged[-1].content, *pending]))
        elif pending:
            merged.append(Message("user", "\n\n".join(pending)))
        merged.append(message)
        pending = []
    if pending:
        contents = [merged.pop().content] if merged[-1].role == "user" else []
        merged.append(Message("user", "\n\n".join([*contents, *pending])))
    return merged


def is_prefill(messages: Sequence[Message]) -> bool:
    """Whether the last message is the start of an answer, which the assistant continues."""
    return bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls


def check_messages(
    messages: Sequence[Message],
    add_generation_prompt: bool,
    alternating_format: str = "",
    allow_tool_calls: bool = False,
) -> None:
    """Raise UserError for an invalid order of roles.

    ``alternating_format`` is the name of a format in which user and assistant must take turns;
    ``allow_tool_calls``: whether the format can write tool calls.
    """
    for number, message in enumerate(messages):
        if message.role not in MESSAGE_ROLES:
            hint = did_you_mean(message.role, MESSAGE_ROLES)
            raise UserError(
                f"message {number} has the role {format_value(message.role)}, expected "
                f"{', '.join(MESSAGE_ROLES)}{hint}"
            )
        if (message.role == "tool" or message.tool_calls) and not allow_tool_calls:
            problem = f"has the role {message.role!r}" if message.role == "tool" else "calls functions"
            raise no_tools_error(f"message {number} {problem}")
    if all(message.role == "system" for message in messages):
        raise UserError("a conversation must have a message with the role 'user'")
    if allow_tool_calls:
        _check_tool_calls(messages)
    if add_generation_prompt and messages[-1].role == "assistant":
        raise UserError("the last message has the role 'assistant'; it must have the role 'user'")
    alternating_turns = [
        (i, other.role)
        for i, other in enumerate(messages)
        if other.role in ("user", "assistant") and not other.tool_calls
    ]
    for turn, (number, role) in enumerate(alternating_turns if alternating_format else ()):
        if (role == "user") != (turn % 2 == 0):
            raise UserError(
                f"in the format {alternating_format!r} the roles must alternate user/assistant, user first; "
                f"message {number} has the role {role!r}"
            )


def no_tools_error(subject: str) -> UserError:
    """The error for tools in a chat format without tools; ``subject`` starts the message."""
    format_names = ", ".join(name for name in CHAT.names() if hasattr(CHAT.get(name), "tool_syntax"))
    return UserError(
        f"{subject}, but this chat format does not support tools; formats that do: {format_names}"
    )


def _check_tool_calls(messages: Sequence[Message]) -> None:
    """Raise UserError for calls outside of assistant messages and for tool results without a call."""
    call_ids: list[str] = []
    for number, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            raise UserError(
                f"message {number} has the role {message.role!r}; only the assistant can call functions"
            )
        if message.role != "tool":
            call_ids = [call.id for call in message.tool_calls]
        elif not call_ids:
            raise UserError(f"message {number} has the role 'tool', but no earlier message calls a function")
        elif message.tool_call_id and message.tool_call_id not in call_ids:
            ids = ", ".join(map(format_value, call_ids))
            raise UserError(
                f"message {number} answers the call {format_value(message.tool_call_id)}; earlier "
                f"calls: {ids}"
            )


def drop_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object of OpenAI's API that are not null: a null field counts as absent."""
    return {name: value for name, value in fields.items() if value is not None}


def build_tool_choice(value: Any, choice: Any = None, parallel_tool_calls: bool = True) -> ToolChoice:
    """Parse the tools and tool_choice of a request in OpenAI's format."""
    return select_tools(validate_tools(value), validate_tool_choice(choice), parallel_tool_calls)


def select_tools(
    tools: Sequence[Tool], choice: str | list[str], parallel_tool_calls: bool = True
) -> ToolChoice:
    """Apply a validated tool_choice to tools: "none" drops them, "required" or a name makes them required."""
    if choice == "none":
        return ToolChoice()
    required = tuple(tool for tool in tools if choice == "required" or [tool.name] == choice)
    if choice != "auto" and not required:
        subject = format_value(choice if choice == "required" else choice[0])
        names = [tool.name for tool in tools]
        if not names:
            raise UserError(f"{subject} requires a call, but there are no tools")
        raise UserError(f"unknown tool {subject}; known: {', '.join(names)}{did_you_mean(choice[0], names)}")
    return ToolChoice(tuple(tools), required, parallel_tool_calls)


def validate_tools(value: Any) -> tuple[Tool, ...]:
    """Parse a list of tool definitions; UserError if one is invalid or two have the same name."""
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise UserError(f"{format_value(value)} is not a list of tools: [{_TOOL_SHAPE}]")
    tools = tuple(_parse_tool(definition, number) for number, definition in enumerate(value))
    first_numbers: dict[str, int] = {}
    for number, tool in enumerate(tools):
        if first_numbers.setdefault(tool.name, number) != number:
            raise UserError(
                f"tool {number} has the same name as tool {first_numbers[tool.name]}: {tool.name!r}"
            )
    return tools


def validate_tool_choice(choice: Any) -> str | list[str]:
    """Parse tool_choice: one of TOOL_CHOICES, or a list with the name of a function."""
    if choice is None:
        return "auto"
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        return choice
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        hint = did_you_mean(choice, TOOL_CHOICES) if isinstance(choice, str) else ""
        function_shape = '{"type": "function", "function": {"name": ...}}'
        raise UserError(
            f"{format_value(choice)} is not a tool_choice, expected {', '.join(TOOL_CHOICES)} or "
            f"{function_shape}{hint}"
        )
    return [name]


def parse_messages(value: Any) -> list[Message]:
    """Parse the messages of a conversation; the role developer becomes system."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a list of messages")
    messages = []
    for number, fields in enumerate(value):
        label = f"message {number}"
        if not isinstance(fields, dict):
            raise UserError(f"{label} is {format_value(fields)}, expected an object with role and content")
        for name in ("function_call", "audio"):
            if fields.get(name):
                raise UserError(f"{label} has {name}, which is not supported; supported: text and tool_calls")
        role, content, tool_call_id = fields.get("role"), fields.get("content"), fields.get("tool_call_id")
        if not isinstance(role, str):
            raise UserError(f"{label} has the role {format_value(role)}, expected {', '.join(MESSAGE_ROLES)}")
        calls = parse_tool_calls(fields.get("tool_calls"), number)
        reasoning = fields.get("reasoning_content")
        reasoning = (fields.get("reasoning") if reasoning is None else reasoning) or ""
        if not isinstance(reasoning, str):
            raise UserError(f"{label} has the reasoning {format_value(reasoning)}, expected a string")
        if content is None and role in ROLES_WITHOUT_CONTENT:
            content = ""
        if isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else part
                if kind != "text" or not isinstance(part, dict) or not isinstance(part.get("text"), str):
                    raise UserError(
                        f"{label} has a part {format_value(kind)}; this model supports text only: "
                        "{type: text, text: ...}"
                    )
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise UserError(
                f"{label} has the content {format_value(content)}, expected a string or a list of texts"
            )
        if not isinstance(tool_call_id, str | None):
            raise UserError(f"{label} has the tool_call_id {format_value(tool_call_id)}, expected a string")
        role = MESSAGE_ROLE_ALIASES.get(role, role)
        messages.append(Message(role, content, calls, tool_call_id or "", reasoning))
    return messages


def parse_tool_calls(value: Any, number: int) -> tuple[ToolCall, ...]:
    """Parse the tool_calls of message ``number`` in OpenAI's format."""
    if not value:
        return ()
    if not isinstance(value, list | tuple):
        raise UserError(
            f"message {number} has the tool_calls {format_value(value)}, expected a list of calls"
        )
    return tuple(parse_tool_call(call, f"call {i} of message {number}") for i, call in enumerate(value))


def encode_arguments(value: Any) -> str:
    """Arguments as JSON, from an object or its JSON; ValueError if they are not a JSON object."""
    if isinstance(value, str):
        value = json.loads(value, parse_constant=reject_constant) if value.strip() else {}
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
    return text


def parse_tool_call(value: Any, subject: str) -> ToolCall:
    """Parse a call in OpenAI's format; ``subject`` names it in error messages."""
    if isinstance(value, ToolCall):
        value = {"id": value.id, "function": {"name": value.name, "arguments": value.arguments}}
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping):
        raise UserError(
            f"{subject} is {format_value(value)}, expected an id and a function with name and arguments"
        )
    name, id = _function_name(function, subject), drop_nulls(value).get("id", "")
    if not isinstance(id, str):
        raise UserError(f"{subject} has the id {format_value(id)}, expected a string")
    try:
        return ToolCall(name, encode_arguments(function.get("arguments")), id)
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"{subject} has the arguments {format_value(function.get('arguments'))}, expected a "
            "JSON object as a string"
        ) from None


def _parse_tool(value: Any, number: int) -> Tool:
    definition = drop_nulls(value) if isinstance(value, Mapping) else {}
    function = definition.get("function")
    if not isinstance(function, Mapping) or definition.get("type", "function") != "function":
        raise UserError(f"tool {number} is {format_value(value)}, expected {_TOOL_SHAPE}")
    definition["function"] = drop_nulls(function)
    subject, schema = f"tool {number}", function.get("parameters")
    name = _function_name(function, subject)
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    if not isinstance(schema, Mapping):
        raise UserError(
            f"{subject} ({name}) has the parameters {format_value(schema)}, expected the JSON "
            "Schema of an object"
        )
    if schema.get("type", "object") != "object":
        raise UserError(
            f"{subject} ({name}) has parameters of the type {format_value(schema['type'])}, expected 'object'"
        )
    if _exceeds_depth(value, _MAX_DEPTH):
        raise UserError(f"{subject} ({name}) is nested more than {_MAX_DEPTH} levels deep")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{subject} ({name}) cannot be written as JSON: {error}") from None
    return Tool(name, {"type": "object", **schema}, definition)


def _function_name(function: Mapping[str, Any], subject: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
        raise UserError(f"{subject} has the name {format_value(name)}, expected {_NAME_RULE}")
    return name


def _exceeds_depth(value: Any, max_depth: int) -> bool:
    """Whether objects and lists are nested more than ``max_depth`` levels deep."""
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return not max_depth or any(_exceeds_depth(item, max_depth - 1) for item in inner)
