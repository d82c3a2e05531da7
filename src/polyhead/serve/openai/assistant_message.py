"""The assistant message of a chat response: its reasoning, its text and its tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyhead.chat.base import ToolCall
from polyhead.chat.reasoning import ReasoningParser
from polyhead.chat.tool_calls import ToolCallParser, ToolCallSyntax
from polyhead.chat.tools import ToolChoice
from polyhead.serve.client_stream import ClientStream
from polyhead.serve.openai.completions import get_finish_reason


class AnswerDelta(NamedTuple):
    """A part of an answer: reasoning, the text after it, and the tool calls after that."""

    reasoning: str
    content: str
    calls: list[ToolCall]


class AssistantMessage:
    """One answer, streamed or complete."""

    def __init__(
        self, syntax: ToolCallSyntax | None, tools: ToolChoice, reasoning: ReasoningParser | None = None
    ) -> None:
        self._parser: ToolCallParser | None = (
            syntax.make_parser(tools) if syntax and tools.all_tools else None
        )
        self._reasoning_parser = reasoning
        self._is_started = False
        self._num_calls = 0  # sent so far

    def next_delta(self, text: str, is_last: bool) -> dict[str, Any]:
        """Return the delta for new text, to be appended by the client."""
        reasoning, content, calls = self._parse_text(text, is_last)
        delta: dict[str, Any] = {} if self._is_started else {"role": "assistant"}
        delta |= _reasoning_fields(reasoning)
        if calls:
            delta["tool_calls"] = [
                {"index": self._num_calls + i, **to_openai(call)} for i, call in enumerate(calls)
            ]
        self._is_started, self._num_calls = True, self._num_calls + len(calls)
        if content or not (self._parser or reasoning) or (is_last and not self._num_calls):
            delta["content"] = content
        return delta

    def full_message(self, text: str) -> dict[str, Any]:
        """Return the complete message; content is null if there are only tool calls."""
        reasoning, content, calls = self._parse_text(text, True)
        self._num_calls = len(calls)
        has_content = content or not (calls or reasoning)
        message = {"role": "assistant", "content": content if has_content else None, "refusal": None}
        message |= _reasoning_fields(reasoning)
        return message | ({"tool_calls": [to_openai(call) for call in calls]} if calls else {})

    def finish_reason(self, stream: ClientStream, row: int) -> str:
        """Return the finish reason."""
        reason = get_finish_reason(stream, row)
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def parse_delta(self, text: str, is_last: bool) -> Iterator[AnswerDelta]:
        """Yield what is certain after this text, in order."""
        reasoning, content = (
            self._reasoning_parser.feed(text, is_last) if self._reasoning_parser else ("", text)
        )
        pairs = self._parser.parse_delta(content, is_last) if self._parser else [(content, [])]
        for part, calls in pairs:
            yield AnswerDelta(reasoning, part, calls)
            reasoning = ""

    @property
    def consumed_bytes(self) -> int:
        """Number of bytes of the answer that are classified as reasoning, text or tool call."""
        return self.reasoning_bytes + (self._parser.consumed_bytes if self._parser else 0)

    @property
    def reasoning_bytes(self) -> int:
        """Number of bytes of the answer before its content."""
        return self._reasoning_parser.consumed_bytes if self._reasoning_parser else 0

    def _parse_text(self, text: str, is_last: bool) -> AnswerDelta:
        """Parse text into its reasoning, one text and all tool calls."""
        reasoning, texts, calls = zip(*self.parse_delta(text, is_last), strict=True)
        return AnswerDelta("".join(reasoning), "".join(texts), [call for group in calls for call in group])


def _reasoning_fields(reasoning: str) -> dict[str, str]:
    """Return the fields of reasoning: the name in vLLM, and the older one that more clients read."""
    return {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}


def to_openai(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in OpenAI's format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
