"""Read conversations from JSONL, one per line.

Lines that cannot be used are counted, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.chat.base import Message
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.readers.files import check_file, is_text, iter_lines
from polyhead.data.readers.reader_common import (
    count_problem,
    describe_boms,
    describe_skipped,
    describe_truncated,
    iter_split,
    join_names,
    number_lines,
    parse_lines,
)
from polyhead.data.readers.tabular import SAMPLE_LINES, is_blank_line, parse_json_line

MESSAGE_KEYS = ("messages", "conversations")
_ROLE_NAMES = {"human": "user", "gpt": "assistant", "developer": "system"}  # roles of other formats


class ConversationExample(NamedTuple):
    """The messages of one conversation, up to the last answer."""

    location: str
    messages: list[Message]


@dataclass
class ConversationReport:
    """Read counts of conversations: total = used + empty + too_long + malformed + unsupported.

    Unsupported: an order of roles that the chat format cannot write, no answer, or an answer that must not be
    learned as it is (its ``weight`` is set and not 1; weights of other messages are ignored, because only
    answers are learned). A conversation with more tokens than fit is cut at its end and counted as
    ``truncated``; too_long is one whose first answer does not fit. ``bom`` counts byte order marks at the
    start of further lines.
    """

    source_label: str
    total: int = 0
    used: int = 0
    answers: int = 0
    empty: int = 0
    too_long: int = 0
    malformed: int = 0
    unsupported: int = 0
    truncated: int = 0
    bom: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line in English.

        Example: 'talks.jsonl: 998 of 1,000 conversations, 2,310 answers; skipped 2 broken (first: line 17)'.
        """
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        kinds = "empty", "too_long", "malformed", "unsupported"
        left_out = describe_skipped(self, tr, *kinds) + describe_boms(self, tr)
        counts = tr(
            "{where}: {kept:,} of {read:,} conversations, {answers:,} answers",
            where=self.source_label,
            kept=self.used,
            read=self.total,
            answers=self.answers,
        )
        return counts + left_out + describe_truncated(self, self.truncated, tr)


@dataclass(frozen=True)
class Conversations:
    """Files of conversations.

    A ``validation_fraction`` is held out, all conversations with the same messages before the first answer in
    the same split.
    """

    files: tuple[Path, ...]
    validation_fraction: float = 0.0
    is_validation: bool = False  # whether these are the held-out lines, or the others

    @property
    def source_label(self) -> str:
        return join_names(self.files)

    def read(self, report: ConversationReport) -> Iterator[ConversationExample]:
        """Yield the usable conversations; the caller counts those that it uses in the report."""
        lines = number_lines(self.files, lambda path: parse_lines(path, parse_chat_line))
        for place, _, messages in iter_split(
            lines,
            _get_question,
            self.validation_fraction,
            self.is_validation,
            "conversation",
            self.source_label,
        ):
            report.total += messages != "bom"
            if isinstance(messages, str):
                count_problem(report, messages, place)
            else:
                yield ConversationExample(place, messages)


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
    return Conversations(paths, validation_fraction, is_validation)


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


def _get_question(line: tuple[str, int, list[Message] | str]) -> str | None:
    """The messages before the first answer, which decide the split; None for a line that is unusable."""
    messages = line[2]
    if isinstance(messages, str):
        return None
    asked = takewhile(lambda message: message.role != "assistant", messages)
    return "\n".join(message.content for message in asked)


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
    for _, messages in conversations.read(ConversationReport(conversations.source_label)):
        for role, content, *_ in messages:
            yield f"{role.capitalize()}: {content}"
