"""Shared by the tests of tool_calls."""

from __future__ import annotations

import random
from typing import Any

from polyhead.chat.tools import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

PLACE = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"$ref": "#/$defs/n"}},
         "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["place", "days"],
             "additionalProperties": False}  # fmt: skip

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "now"}},
]

VALID = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def heard(
    name: str, text: str, cuts: random.Random | None = None, **choice: Any
) -> tuple[str, list[tuple[str, str]]]:
    """What is read of a text that comes in pieces."""
    reader = CHAT.build(Choice(name)).tool_syntax.make_parser(build_tool_choice(TOOLS, **choice))
    said, calls, at = "", [], 0
    while cuts is not None and at < len(text):
        end = at + cuts.randrange(1, 6)
        new, found = reader.feed(text[at:end])
        said, calls, at = said + new, calls + found, end
    new, found = reader.feed("" if cuts else text, True)
    return said + new, [(call.name, call.arguments) for call in calls + found]


def trained(special: bool | None) -> Tokenizer:
    made = train_tokenizer(
        [VALID, '{"place": "Rome", "days": 123456789} Oslo weather'] * 10, Choice("bpe"), 320
    )
    made._inner.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    if special is not None:
        made._inner.add_tokens(
            [
                AddedToken(mark, special=special, normalized=False)
                for mark in ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
            ]
        )
    return Tokenizer(made._inner)
