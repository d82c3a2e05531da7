"""Limits on the number and length of input texts, checked before anything is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from polyhead.chat.base import Message
from polyhead.chat.tools import Tool
from polyhead.serve.http.errors import ApiError
from polyhead.serve.http.limits import Limits

SIZED_FIELDS = {"prompt", "input", "instructions", "target", "tokens", "messages", "terminology"}
MESSAGE_OVERHEAD = 16  # additional characters per message, about the cost of its special tokens


def check_input_size(body: BaseModel, limits: Limits) -> None:
    """Reject more texts, or longer ones, than the limits allow."""
    for name in sorted(SIZED_FIELDS & body.model_fields_set):
        value: Any = getattr(body, name)
        label = name
        if name == "instructions":  # they become the first message
            label = "the input with its instructions"
            value = conversation_text([Message("system", value), *body.input], body.tools)  # type: ignore[attr-defined]
        if isinstance(value, list) and isinstance(value[0], Message):  # a conversation is one text
            tools = getattr(body, "tools", ())
            if tools and len(conversation_text(value)) <= limits.chars:
                name, label = "tools", "the conversation with its tools"
            value = conversation_text(value, tools)
        if name == "terminology":
            value = "".join(text for word, phrases in value.items() for text in (word, *phrases))
        texts = [value or ""] if name == "tokens" or isinstance(value, str | None) else value
        if len(texts) > limits.batch:
            raise ApiError(
                400,
                "too_many_texts",
                f"{name} has {len(texts)} texts; this service takes {limits.batch} at once",
                name,
            )
        for text in _flatten(texts):
            if len(text) > limits.chars:
                unit = "characters" if isinstance(text, str) else "tokens"
                raise ApiError(
                    400,
                    "text_too_long",
                    f"{label} has a text of {len(text)} {unit}; this service takes {limits.chars}",
                    name,
                )


def conversation_text(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Return a text as long as the conversation and its tool definitions count.

    Each message, call and tool counts ``MESSAGE_OVERHEAD`` characters in addition to its content.
    """
    parts = [message.content for message in messages]
    parts += [call.name + call.arguments for message in messages for call in message.tool_calls]
    parts += [json.dumps(tool.definition, ensure_ascii=False) for tool in tools]
    return "".join(text.ljust(len(text) + MESSAGE_OVERHEAD) for text in parts)


def _flatten(texts: Iterable[Any]) -> Iterable[Any]:
    for text in texts:
        yield from text if isinstance(text, tuple) else [text]
