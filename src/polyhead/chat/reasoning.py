"""Reasoning of a model before its answer: syntax of a chat format, and streaming parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from polyhead.chat.base import ChatFormat, ChatPiece, Message, ToolChoice, is_prefill


class ReasoningSyntax(NamedTuple):
    """Markers around the reasoning in an answer."""

    start: str = "<think>"
    end: str = "</think>"
    is_open: bool = False  # whether the prompt for an answer ends inside of its reasoning

    @property
    def markers(self) -> tuple[str, str]:
        """The start and the end."""
        return self.start, self.end

    def format_answer(self, reasoning: str, content: str) -> str:
        """An answer with its reasoning, as the model writes it."""
        stripped = reasoning.strip("\n")
        return f"{self.start}\n{stripped}\n{self.end}\n\n{content}"

    def empty_pieces(self) -> list[ChatPiece]:
        """Empty reasoning: after it the model writes its answer at once."""
        start = [] if self.is_open else [ChatPiece(self.start, "mark"), ChatPiece("\n", "text")]
        return [*start, ChatPiece("\n", "text"), ChatPiece(self.end, "mark"), ChatPiece("\n\n", "text")]


@runtime_checkable
class ReasoningFormat(Protocol):
    """A chat format whose models may reason before an answer."""

    @property
    def reasoning(self) -> ReasoningSyntax | None:
        """The markers; None if this model does not reason."""

    def render_without_reasoning(self, messages: Sequence[Message], tools: ToolChoice) -> list[ChatPiece]:
        """Render the prompt for an answer without reasoning."""


def reasoning_syntax(format: ChatFormat) -> ReasoningSyntax | None:
    """The syntax of the reasoning in a chat format, or None."""
    return format.reasoning if isinstance(format, ReasoningFormat) else None


def insert_reasoning(messages: Sequence[Message], syntax: ReasoningSyntax | None) -> list[Message]:
    """Put the reasoning of each message before its content; a format without reasoning drops it."""
    return [
        message._replace(content=syntax.format_answer(message.reasoning, message.content), reasoning="")
        if syntax and message.reasoning
        else message
        for message in messages
    ]


class ReasoningParser:
    """Splits streamed output into reasoning and content.

    Newlines around the reasoning, and between it and the content, belong to neither. Output that does not
    start with reasoning is content; reasoning without an end is reasoning only.
    """

    def __init__(self, syntax: ReasoningSyntax, messages: Sequence[Message], thinks: bool) -> None:
        """For the answer to ``messages``; without ``thinks`` the prompt ends with empty reasoning."""
        self.syntax = syntax
        self._pending_text = ""  # may belong to a marker, or is a newline that may be dropped
        self._has_reasoning = False
        prefill = messages[-1].content if is_prefill(messages) else ""
        is_open = prefill.rpartition(syntax.start)[2] != prefill and syntax.end not in prefill
        is_open = is_open or (syntax.is_open and thinks and not prefill.strip())
        # start, reasoning, end (between reasoning and content) or content
        self._state = "reasoning" if is_open else "start" if thinks and not prefill.strip() else "content"

    def feed(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """Parse more output; return new reasoning and new content, with ``is_last`` all that remains."""
        if self._state == "content":
            return "", text
        self._pending_text += text
        reasoning = content = ""
        if self._state == "start":
            self._parse_start(is_last)
        if self._state == "reasoning":
            reasoning = self._parse_reasoning(is_last)
        if self._state == "end" and (self._pending_text.strip("\n") or is_last):
            self._state, self._pending_text = "content", self._pending_text.lstrip("\n")
        if self._state == "content":
            content, self._pending_text = self._pending_text, ""
        return reasoning, content

    def _parse_start(self, is_last: bool) -> None:
        stripped, mark = self._pending_text.lstrip(), self.syntax.start
        if stripped.startswith(mark):
            self._state, self._pending_text = "reasoning", stripped[len(mark) :]
        elif is_last or not mark.startswith(stripped):
            self._state = "content"

    def _parse_reasoning(self, is_last: bool) -> str:
        """The reasoning that is certain; text that may belong to the end stays pending."""
        text, mark = self._pending_text, self.syntax.end
        text = text if self._has_reasoning else text.lstrip("\n")
        before, found, rest = text.partition(mark)
        if found or is_last:
            self._state, self._pending_text = ("end" if found else "reasoning"), rest
            return before.rstrip("\n")
        overlap = next((k for k in range(len(mark) - 1, 0, -1) if text.endswith(mark[:k])), 0)
        certain = text[: len(text) - overlap].rstrip("\n")
        self._pending_text = text[len(certain) :]
        self._has_reasoning = self._has_reasoning or bool(certain)
        return certain
