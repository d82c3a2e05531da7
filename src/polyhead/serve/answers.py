"""What a client is told of an answer in a conversation: its text, and the functions that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyhead.serve.completions import reason_of
from polyhead.serve.talk import Talk
from polyhead.text.chat.base import Call
from polyhead.text.chat.calls import CallReader, Calls
from polyhead.text.chat.tools import Tools


class Answer:
    """One answer, as it comes or whole."""

    def __init__(self, style: Calls | None, tools: Tools) -> None:
        self._reader: CallReader | None = style.reader(tools) if style and tools.all else None
        self._begun = False
        self._calls = 0  # that were told

    def delta(self, text: str, last: bool) -> dict[str, Any]:
        """What is new, for a client that adds it to what it has."""
        said, calls = self._heard(text, last)
        told: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        if calls:
            told["tool_calls"] = [{"index": self._calls + i, **shown(call)} for i, call in enumerate(calls)]
        self._begun, self._calls = True, self._calls + len(calls)
        if said or self._reader is None or (last and not self._calls):
            told["content"] = said
        return told

    def message(self, text: str) -> dict[str, Any]:
        """All of it; without a text where it calls functions and says nothing."""
        said, calls = self._heard(text, True)
        self._calls = len(calls)
        told = {"role": "assistant", "content": said if said or not calls else None, "refusal": None}
        return told | ({"tool_calls": [shown(call) for call in calls]} if calls else {})

    def reason(self, talk: Talk, row: int) -> str:
        """How it ended."""
        reason = reason_of(talk, row)
        return "tool_calls" if self._calls and reason == "stop" else reason

    def parts(self, text: str, last: bool) -> Iterator[tuple[str, list[Call]]]:
        """What is sure with this text, in the order in which it was said: some text and the calls behind it, then more."""
        yield from self._reader.parts(text, last) if self._reader else [(text, [])]

    @property
    def passed(self) -> int:
        """Bytes of the answer of which it is sure what they are."""
        return self._reader.passed if self._reader else 0

    def _heard(self, text: str, last: bool) -> tuple[str, list[Call]]:
        """The same as one text and all calls."""
        return self._reader.feed(text, last) if self._reader else (text, [])


def shown(call: Call) -> dict[str, Any]:
    """A call as OpenAI's clients read it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
