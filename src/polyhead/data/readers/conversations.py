"""Read conversations, and preferences between answers, from JSONL, one per line.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.chat.base import Message, ToolChoice, build_tool_choice, parse_messages
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.data.readers.rows import ReadReport, Rows
from polyhead.data.readers.tabular import check_object_files, parse_lines, parse_object_line

MESSAGE_KEYS = ("messages", "conversations")
_SHAREGPT_KEYS = {"role": "from", "content": "value"}
_ROLE_NAMES = {"human": "user", "gpt": "assistant", "developer": "system"}  # roles of other formats
# what other programs write into the text, or take out of the loss
_UNREAD_ROW_KEYS = ("functions", "documents", "chat_template_kwargs", "images", "audios", "videos")
_UNREAD_MESSAGE_KEYS = ("refusal", "thinking", "train_detail", "images")
_EXAMPLE = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


class ChatRow(NamedTuple):
    """A conversation up to the last answer that is learned."""

    messages: list[Message]
    is_learned: list[bool]  # of each message: whether it is an answer that is learned
    tools: ToolChoice = ToolChoice()


class ConversationReport(ReadReport):
    """Read counts of conversations; too_long is one whose first answer does not fit."""

    unit = "conversation"
    counts = "{where}: {kept:,} of {read:,} conversations, {answers:,} answers"


class Conversations(Rows[ChatRow]):
    """Files of conversations; all with the same messages before the first answer are in the same split."""

    report_type = ConversationReport

    def read_file(self, path: Path) -> Iterator[tuple[int, ChatRow | str]]:
        return parse_lines(path, parse_chat_line)

    def get_split_text(self, row: ChatRow) -> str:
        """The messages before the first answer."""
        questions = takewhile(lambda message: message.role != "assistant", row.messages)
        return "\n".join(message.content for message in questions)


def open_conversations(
    files: Sequence[Path], validation_fraction: float = 0.0, is_validation: bool = False
) -> Conversations:
    """Open files of conversations; a missing file, or one without conversations, is a UserError."""
    paths, empty = check_object_files(files, parse_chat_line, ConversationReport.unit, _EXAMPLE)
    return Conversations(paths, "jsonl", {}, validation_fraction, is_validation, empty)


def parse_chat_line(raw: bytes | None) -> ChatRow | str:
    """The conversation of a line up to the last answer that is learned, or the kind of problem."""
    return parse_object_line(raw, parse_chat_row)


def parse_chat_row(row: dict[str, Any]) -> ChatRow | str:
    """The conversation of a row, parsed as by the service, or the kind of problem.

    A part that would be left out is a UserError.
    """
    if (raw_messages := _find_messages(row)) is None:
        return "malformed"
    # half of a surrogate pair is a ValueError
    json.dumps([raw_messages, row.get("tools")], ensure_ascii=False).encode()
    for subject, fields, keys in (
        ("the row", row, _UNREAD_ROW_KEYS),
        *((f"message {i}", raw, _UNREAD_MESSAGE_KEYS) for i, raw in enumerate(raw_messages)),
    ):
        if unread := [key for key in keys if fields.get(key)]:
            raise UserError(f"{subject} has {unread[0]}, which is not supported")
    messages = parse_messages(raw_messages)
    if row.get("system") and messages[:1] and messages[0].role != "system":
        raise UserError("the row has system, which is read only as the first of its messages")
    is_learned = [_is_learned(raw, i) for i, raw in enumerate(raw_messages)]
    while messages and not (is_learned[-1] and _has_output(messages[-1])):
        del messages[-1], is_learned[-1]
    return ChatRow(messages, is_learned, build_tool_choice(row.get("tools"))) if messages else "unsupported"


def _find_messages(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a row with the keys of OpenAI, of which ShareGPT has others; None if there are none."""
    values = next((row[key] for key in MESSAGE_KEYS if key in row), None)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        return None
    messages = [
        value | {key: value.get(key, value.get(other)) for key, other in _SHAREGPT_KEYS.items()}
        for value in values
    ]
    for message in messages:
        role, content = message["role"], message["content"]
        if not isinstance(role, str) or not isinstance(content, str | list | None):
            return None
        message["role"] = _ROLE_NAMES.get(role, role)
    return messages


def _is_learned(raw: dict[str, Any], number: int) -> bool:
    """Whether a message is an answer that is learned: its ``weight`` and ``train`` are not 0 or false."""
    if raw["role"] != "assistant":
        if raw.get("train"):
            raise UserError(f"message {number} has train, but only answers are learned")
        return False
    values = {key: raw[key] for key in ("weight", "train") if raw.get(key) is not None}
    for key, value in values.items():
        if value not in (0, 1):
            raise UserError(f"message {number} has the {key} {format_value(value)}, expected 0 or 1")
    if raw["content"] is None and not any(map(raw.get, ("tool_calls", "reasoning", "reasoning_content"))):
        raise UserError(f"message {number} has neither content nor tool_calls")
    return all(values.values())


def _has_output(message: Message) -> bool:
    return bool(message.tool_calls or message.reasoning) or not is_blank(message.content)


def read_conversation_texts(conversations: Conversations) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: those of each message, after its role."""
    for _, row in conversations.read():
        for message in row.messages:
            yield f"{message.role.capitalize()}: {message.content}"
            yield from filter(None, [message.reasoning, *(call.arguments for call in message.tool_calls)])
