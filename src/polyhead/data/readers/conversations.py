"""Read conversations from JSONL, one per line.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.chat.base import Message
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.data.readers.files import check_file, is_text, iter_lines
from polyhead.data.readers.rows import ReadReport, Rows
from polyhead.data.readers.tabular import SAMPLE_LINES, is_blank_line, parse_json_line, parse_lines

MESSAGE_KEYS = ("messages", "conversations")
_ROLE_NAMES = {"human": "user", "gpt": "assistant", "developer": "system"}  # roles of other formats


class ConversationExample(NamedTuple):
    """The messages of one conversation, up to the last answer."""

    location: str
    messages: list[Message]


class ConversationReport(ReadReport):
    """Read counts of conversations; too_long is one whose first answer does not fit."""

    unit = "conversation"
    counts = "{where}: {kept:,} of {read:,} conversations, {answers:,} answers"


class Conversations(Rows):
    """Files of conversations; all with the same messages before the first answer are in the same split."""

    unit = "conversation"

    def read(self, report: ConversationReport | None = None) -> Iterator[ConversationExample]:
        """Yield the usable conversations; the caller counts those that it uses in the report."""
        for place, _, messages in self.read_rows(report or ConversationReport(self.source_label)):
            yield ConversationExample(place, messages)

    def read_file(self, path: Path) -> Iterator[tuple[int, list[Message] | str]]:
        return parse_lines(path, parse_chat_line)

    def get_split_text(self, row: list[Message] | str) -> str | None:
        """The messages before the first answer; None for a line that is unusable."""
        if isinstance(row, str):
            return None
        return "\n".join(
            message.content for message in takewhile(lambda message: message.role != "assistant", row)
        )


def open_conversations(
    files: Sequence[Path], validation_fraction: float = 0.0, is_validation: bool = False
) -> Conversations:
    """Open files of conversations; a missing file, or one without conversations, is a UserError."""
    if not files:
        raise UserError("no files: expected a JSONL file of conversations")
    paths = tuple(check_file(path) for path in files)
    for path in paths:
        sample = [parse_chat_line(raw) for raw in islice(iter_lines(path), SAMPLE_LINES)]
        if all(isinstance(messages, str) for messages in sample):
            raise UserError(
                f"{path.name}: none of its first {len(sample)} lines is a conversation; expected JSONL such "
                'as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": '
                '"..."}]}'
            )
    return Conversations(paths, validation_fraction=validation_fraction, is_validation=is_validation)


def parse_chat_line(raw: bytes | None) -> list[Message] | str:
    """The messages of a line up to the last answer, or the kind of problem."""
    if raw is None:
        return "too_long"
    if is_blank_line(raw):
        return "empty"
    try:
        row = parse_json_line(raw) if is_text(raw) else None
    except (ValueError, RecursionError):
        return "malformed"
    raw_messages = (
        next((row[key] for key in MESSAGE_KEYS if key in row), None) if isinstance(row, dict) else None
    )
    if not isinstance(raw_messages, list):
        return "malformed"
    messages = [
        message_dict for message_dict in map(_parse_message, raw_messages) if message_dict is not None
    ]
    if len(messages) < len(raw_messages):
        return "malformed"
    answers = [
        message_dict
        for message_dict, message in zip(raw_messages, messages, strict=True)
        if message.role == "assistant"
    ]
    if any(message_dict.get("weight") not in (None, 1) for message_dict in answers):
        return "unsupported"
    while messages and (messages[-1].role != "assistant" or is_blank(messages[-1].content)):
        messages.pop()
    return messages or "unsupported"


def _parse_message(raw: Any) -> Message | None:
    """Parse one message, with the keys of OpenAI (role, content) or of ShareGPT (from, value)."""
    if not isinstance(raw, dict):
        return None
    role, content = (raw.get(a, raw.get(b)) for a, b in (("role", "from"), ("content", "value")))
    if not isinstance(role, str) or not isinstance(content, str):
        return None
    try:
        content.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return Message(_ROLE_NAMES.get(role, role), content)


def read_conversation_texts(conversations: Conversations) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: role and content of each message."""
    for _, messages in conversations.read():
        for role, content, *_ in messages:
            yield f"{role.capitalize()}: {content}"
