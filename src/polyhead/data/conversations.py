"""Conversations from JSONL, one a line; what cannot be learned from is counted, never dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.data.columns import SAMPLE_LINES, read_json
from polyhead.data.files import check_file, is_text, lines
from polyhead.data.reading import blank, count, describe_cut, names, of_share, placed, skipped
from polyhead.errors import UserError
from polyhead.text.chat.base import Message

KEYS = ("messages", "conversations")
NAMES = {"human": "user", "gpt": "assistant", "developer": "system"}  # of roles, as others write them


class Conversation(NamedTuple):
    """Who said what, up to the last answer."""

    place: str
    messages: list[Message]


@dataclass
class ConversationReport:
    """What became of conversations: read = kept + blank + overlong + broken + unfit.

    Unfit is an order of roles that the format cannot write, one without an answer, or with an answer that shall not be
    learned as it is (``weight`` is there and not 1); nothing else is learned anyway, so its weight says nothing. Of a
    conversation with more tokens than fit the end is left out, and it is counted as ``cut``; overlong is one whose
    first answer does not fit.
    """

    where: str
    read: int = 0
    kept: int = 0
    answers: int = 0
    blank: int = 0
    overlong: int = 0
    broken: int = 0
    unfit: int = 0
    cut: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line in English: 'talks.jsonl: 998 of 1,000 conversations, 2,310 answers; skipped 2 broken (first: line 17)'."""
        return self.describe(format_english)

    def describe(self, tr: Translate = tr) -> str:
        """The same line in the current language."""
        left_out = skipped(self, tr, "blank", "overlong", "broken", "unfit")
        counts = tr(
            "{where}: {kept:,} of {read:,} conversations, {answers:,} answers",
            where=self.where,
            kept=self.kept,
            read=self.read,
            answers=self.answers,
        )
        return counts + left_out + describe_cut(self, self.cut, tr)


@dataclass(frozen=True)
class Conversations:
    """Where conversations come from. A ``share`` of the lines, spread evenly, is held out."""

    files: tuple[Path, ...]
    share: float = 0.0
    held: bool = False  # whether these are the lines that were held out, or the others

    @property
    def where(self) -> str:
        return names(self.files)

    def read(self, report: ConversationReport) -> Iterator[Conversation]:
        """The usable ones; who writes them counts those that are kept."""
        every = placed(self.files, lambda path: enumerate(lines(path), 1))
        for place, _, raw in of_share(every, self.share, self.held, "conversation", self.where):
            report.read += 1
            found = parsed(raw)
            if isinstance(found, str):
                count(report, found, place)
            else:
                yield Conversation(place, found)


def open_conversations(files: Sequence[Path], share: float = 0.0, held: bool = False) -> Conversations:
    """The conversations of some files, which are there and hold some; every mistake in the names is found here."""
    if not files:
        raise UserError("no files: name a JSONL file of conversations")
    paths = tuple(check_file(path) for path in files)
    for path in paths:
        sample = [parsed(raw) for raw in islice(lines(path), SAMPLE_LINES)]
        if all(isinstance(found, str) for found in sample):
            raise UserError(
                f"{path.name}: none of its first {len(sample)} lines is a conversation; wanted JSONL such as "
                '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
            )
    return Conversations(paths, share, held)


def parsed(raw: bytes | None) -> list[Message] | str:
    """The messages of a line up to the last answer, or the kind of trouble."""
    if raw is None:
        return "overlong"
    if not raw.strip():
        return "blank"
    try:
        row = read_json(raw) if is_text(raw) else None
    except (ValueError, RecursionError):
        return "broken"
    told = next((row[key] for key in KEYS if key in row), None) if isinstance(row, dict) else None
    if not isinstance(told, list):
        return "broken"
    messages = [one for one in map(_message, told) if one is not None]
    if len(messages) < len(told):
        return "broken"
    answers = [one for one, message in zip(told, messages, strict=True) if message.role == "assistant"]
    if any(one.get("weight") not in (None, 1) for one in answers):
        return "unfit"
    while messages and (messages[-1].role != "assistant" or blank(messages[-1].content)):
        messages.pop()
    return messages or "unfit"


def _message(given: Any) -> Message | None:
    """One message, in the words of OpenAI (role, content) or of ShareGPT (from, value)."""
    if not isinstance(given, dict):
        return None
    role, content = (given.get(a, given.get(b)) for a, b in (("role", "from"), ("content", "value")))
    if not isinstance(role, str) or not isinstance(content, str):
        return None
    try:
        content.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return Message(NAMES.get(role, role), content)


def texts(conversations: Conversations) -> Iterator[str]:
    """What a tokenizer learns from: who speaks, and what is said."""
    for _, messages in conversations.read(ConversationReport(conversations.where)):
        for role, content, *_ in messages:
            yield f"{role.capitalize()}: {content}"
