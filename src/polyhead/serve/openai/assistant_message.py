"""The assistant message of a chat response: its text and its tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyhead.chat.base import ToolCall
from polyhead.chat.tool_calls import ToolCallParser, ToolCallSyntax
from polyhead.chat.tools import ToolChoice
from polyhead.serve.client_stream import ClientStream
from polyhead.serve.openai.completions import get_finish_reason


class AssistantMessage:
    """One answer, streamed or complete."""

    def __init__(self, syntax: ToolCallSyntax | None, tools: ToolChoice) -> None:
        self._parser: ToolCallParser | None = (
            syntax.make_parser(tools) if syntax and tools.all_tools else None
        )
        self._is_started = False
        self._num_calls = 0  # sent so far

    def next_delta(self, text: str, is_last: bool) -> dict[str, Any]:
        """Return the delta for new text, to be appended by the client."""
        content, calls = self._parse_text(text, is_last)
        delta: dict[str, Any] = {} if self._is_started else {"role": "assistant"}
        if calls:
            delta["tool_calls"] = [
                {"index": self._num_calls + i, **to_openai(call)} for i, call in enumerate(calls)
            ]
        self._is_started, self._num_calls = True, self._num_calls + len(calls)
        if content or self._parser is None or (is_last and not self._num_calls):
            delta["content"] = content
        return delta

    def full_message(self, text: str) -> dict[str, Any]:
        """Return the complete message; content is null if there are only tool calls."""
        content, calls = self._parse_text(text, True)
        self._num_calls = len(calls)
        message = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        return message | ({"tool_calls": [to_openai(call) for call in calls]} if calls else {})

    def finish_reason(self, stream: ClientStream, row: int) -> str:
        """Return the finish reason."""
        reason = get_finish_reason(stream, row)
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def parse_delta(self, text: str, is_last: bool) -> Iterator[tuple[str, list[ToolCall]]]:
        """Yield what is certain after this text, in order.

        Each item is a stretch of text and the tool calls after it.
        """
        yield from self._parser.parse_delta(text, is_last) if self._parser else [(text, [])]

    @property
    def consumed_bytes(self) -> int:
        """Number of bytes of the answer that are classified as text or tool call."""
        return self._parser.consumed_bytes if self._parser else 0

    def _parse_text(self, text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Parse text into one text and all tool calls."""
        return self._parser.feed(text, is_last) if self._parser else (text, [])


def to_openai(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in OpenAI's format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
