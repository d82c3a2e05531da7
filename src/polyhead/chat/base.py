"""Chat messages, the pieces of text that a chat format renders, and checks of the order of roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.core.registry import CHAT

MESSAGE_ROLES = ("system", "user", "assistant", "tool")
MESSAGE_ROLE_ALIASES = {"developer": "system"}
ROLES_WITHOUT_CONTENT = ("assistant", "tool")  # their content may be missing: it is empty
PieceKind = Literal["text", "token", "mark", "role", "template"]


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
        ...

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """Render a conversation, with ``add_generation_prompt`` up to the start of an assistant turn.

        An order of roles that the format does not allow raises UserError.
        """
        ...


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
