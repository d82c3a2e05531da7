"""How much a request may bring: texts and their lengths, before anything is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from polyhead.serve.limits import Limits
from polyhead.serve.refusal import Refusal
from polyhead.text.chat.base import Message
from polyhead.text.chat.tools import Tool

SIZED = {"prompt", "input", "instructions", "target", "tokens", "messages", "terms"}
FRAME = 16  # characters that a message counts besides what it says, about what the tokens around it cost


def check_size(body: BaseModel, limits: Limits) -> None:
    """Refuse more texts, or longer ones, than the service takes."""
    for name in sorted(SIZED & body.model_fields_set):
        given: Any = getattr(body, name)
        told = name
        if name == "instructions":  # they are the conversation's first message
            told = "the input with its instructions"
            given = conversation([Message("system", given), *body.input], body.tools)  # type: ignore[attr-defined]
        if isinstance(given, list) and isinstance(given[0], Message):  # a conversation is one text
            tools = getattr(body, "tools", ())
            if tools and len(conversation(given)) <= limits.chars:
                name, told = "tools", "the conversation with its tools"
            given = conversation(given, tools)
        if name == "terms":
            given = "".join(text for word, phrases in given.items() for text in (word, *phrases))
        texts = [given or ""] if name == "tokens" or isinstance(given, str | None) else given
        if len(texts) > limits.batch:
            raise Refusal(
                400,
                "too_many_texts",
                f"{name} has {len(texts)} texts; this service takes {limits.batch} at once",
                name,
            )
        for text in _flat(texts):
            if len(text) > limits.chars:
                what = "characters" if isinstance(text, str) else "tokens"
                raise Refusal(
                    400,
                    "text_too_long",
                    f"{told} has a text of {len(text)} {what}; this service takes {limits.chars}",
                    name,
                )


def conversation(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """A text as long as what a conversation costs to read, and the tools that are described in it."""
    said = [message.content for message in messages]
    said += [call.name + call.arguments for message in messages for call in message.calls]
    said += [json.dumps(tool.given, ensure_ascii=False) for tool in tools]
    return "".join(text.ljust(len(text) + FRAME) for text in said)


def _flat(texts: Iterable[Any]) -> Iterable[Any]:
    for text in texts:
        yield from text if isinstance(text, tuple) else [text]
