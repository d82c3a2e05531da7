"""Limits on the number and length of input texts, checked before anything is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from polyhead.chat.base import Message
from polyhead.chat.tools import Tool
from polyhead.serve.api_errors import ApiError
from polyhead.serve.limits import Limits

SIZED_FIELDS = {
    "prompt",
    "input",
    "instructions",
    "target",
    "text",
    "tokens",
    "messages",
    "terminology",
    "query",
    "documents",
}
MESSAGE_OVERHEAD = 16  # additional characters per message, about the cost of its special tokens


class SizedMessages(list[Message]):
    """Messages of a conversation, which are measured once."""

    @cached_property
    def num_chars(self) -> int:
        """Characters of all messages and calls, and ``MESSAGE_OVERHEAD`` for each."""
        contents = [message.content + message.reasoning for message in self]
        calls = [call.name + call.arguments for message in self for call in message.tool_calls]
        return sum(len(text) + MESSAGE_OVERHEAD for text in (*contents, *calls))

    def with_system(self, text: str) -> SizedMessages:
        """Return the conversation after a system message."""
        messages = SizedMessages([Message("system", text), *self])
        messages.num_chars = len(text) + MESSAGE_OVERHEAD + self.num_chars
        return messages


def check_input_size(body: Any, limits: Limits) -> None:
    """Reject more texts, or longer ones, than the limits allow. A conversation is one text."""
    tools: Sequence[Tool] = getattr(body, "tools", ())
    tool_chars = sum(
        len(json.dumps(tool.definition, ensure_ascii=False)) + MESSAGE_OVERHEAD for tool in tools
    )
    for name in sorted(SIZED_FIELDS & body.model_fields_set):
        value: Any = getattr(body, name)
        # tokens of an embeddings request, text of a response
        if isinstance(value, bool | BaseModel):
            continue
        if isinstance(value, SizedMessages):
            with_tools = tool_chars > 0 and value.num_chars <= limits.max_chars
            label = "the conversation with its tools" if with_tools else name
            _check_length(value.num_chars + tool_chars, limits, label, "tools" if with_tools else name)
            continue
        if name == "instructions":  # they become the first message
            messages: SizedMessages = body.input.with_system(value)
            _check_length(messages.num_chars + tool_chars, limits, "the input with its instructions", name)
            continue
        if name == "terminology":
            value = "".join(text for word, phrases in value.items() for text in (word, *phrases))
        texts = [value or ""] if name == "tokens" or isinstance(value, str | None) else value
        max_texts = getattr(limits, body.batch_limit)
        if len(texts) > max_texts:
            raise ApiError(
                400,
                "too_many_texts",
                f"{name} has {len(texts)} texts; the maximum is {max_texts}",
                name,
            )
        for text in _flatten(texts):
            _check_length(len(text), limits, name, name, "characters" if isinstance(text, str) else "tokens")


def _check_length(length: int, limits: Limits, label: str, field: str, unit: str = "characters") -> None:
    if length > limits.max_chars:
        message = f"{label} has a text of {length} {unit}; the maximum is {limits.max_chars}"
        raise ApiError(400, "text_too_long", message, field)


def _flatten(texts: Iterable[Any]) -> Iterable[Any]:
    for text in texts:
        yield from text if isinstance(text, tuple) else [text]
