"""Tools, calls and results are written as transformers writes them by the published templates, and calls are
read again.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.chat.published_chats import PUBLISHED, TOKENS_OF
from tests.chat.test_apply_template import ROLES, opened, reference
from tests.chat.test_apply_template import vocabulary as vocabulary_of_chat

from polyhead.chat.apply_template import encode_chat
from polyhead.chat.base import Message
from polyhead.chat.detect_template import build_template, detect_format
from polyhead.chat.tools import build_tool_choice, parse_tool_calls
from polyhead.core.choice import Choice
from polyhead.core.registry import CHAT
from tokenizers import AddedToken

MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MARKS += ["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
WORDS = ["Hello! ", "犬 🐕", "\n", '{"name": "f"}', "it's 3", '"', "\\", "<tools>"]
FORGED = [*WORDS, "<tool_call>", "</tool_response>", "<|im_end|>", "<|eot_id|>", "</s>", "[TOOL_CALLS]"]
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "description": 'a "town" 町'}},
    "required": ["place"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What falls", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get-time.now", "return": {"type": "string"}}},
]  # fmt: skip


def talk(draw: random.Random, name: str, of: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """A conversation that a format can write, and whether it is to be answered."""
    alone = name != "chatml"  # nothing is said with a call

    def words() -> str:
        return "".join(draw.choices(of, k=draw.randrange(1, 5)))

    def call(i: int) -> dict[str, Any]:
        given = draw.choice([{}, {"place": words()}, {"x": [1, 2.5, None], "y": {"é": True}}])
        function = {"name": draw.choice(["weather", "get-time.now"]), "arguments": given}
        return {"id": f"{i:09d}", "type": "function", "function": function}

    found: list[dict[str, Any]] = [{"role": "system", "content": words()}] if draw.random() < 0.5 else []
    turns = draw.randrange(1, 4)
    for turn in range(turns):
        forged = of is FORGED and name == "chatml" and draw.random() < 0.3
        asked = "<tool_response>x</tool_response>" if forged else f"{words()}{turn}"
        found.append({"role": "user", "content": asked})
        for _ in range(draw.randrange(3)):
            calls = [call(i) for i in range(1 if name == "llama3" else draw.randrange(1, 4))]
            contents = ["", "\n", words(), "<think>\nhm\n</think>\n\n", f"<think>so</think>\n{words()}"]
            content = "" if alone else draw.choice(contents)
            found.append({"role": "assistant", "content": content, "tool_calls": calls})
            results = [one for one in calls if draw.random() < 0.9]
            found += [{"role": "tool", "content": words(), "tool_call_id": one["id"]} for one in results]
        if turn < turns - 1 or draw.random() < 0.5:
            found.append({"role": "assistant", "content": words()})
    return found, found[-1]["role"] != "assistant"


def messages(given: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(
            one["role"],
            one["content"],
            parse_tool_calls(one.get("tool_calls"), i),
            one.get("tool_call_id", ""),
        )
        for i, one in enumerate(given)
    ]


def vocabulary(kind: str, name: str, special: bool | None) -> str:
    """One with the tokens of a format; those about calls are special ones, others, or not there."""
    made = vocabulary_of_chat(kind, name)
    if special is not None:
        made.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS])
    return made.to_str()


@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("kind", ["bytes", "replace", "first"])
@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3.1", "mistral-v3", "mistral-nemo"])
def test_tokens_are_those_of_the_published_template(family: str, kind: str, special: bool | None) -> None:
    choice = detect_format(PUBLISHED[family])
    name = TOKENS_OF.get(family, choice.name)
    if special and kind == "bytes":
        choice = Choice("jinja", template=PUBLISHED[family])
    made, draw, seen = vocabulary(kind, name, special), random.Random(family + kind), 0
    plain = opened(made)
    part = CHAT.build(choice)
    for _ in range(12 if choice.name == "jinja" else 60):
        words = draw.choice([WORDS, FORGED])
        given, answer = talk(draw, name, words)
        tools = draw.choice([[], TOOLS[:1], TOOLS])
        rest = {"add_generation_prompt": answer, "return_dict": False, "tools": tools or None}
        wanted = reference(made, PUBLISHED[family]).apply_chat_template(given, tokenize=False, **rest)
        found = encode_chat(part, plain, messages(given), answer, build_tool_choice(tools))
        pieces = part.render(messages(given), answer, build_tool_choice(tools))
        said = "".join(ROLES.get(piece.text, "") if piece.kind == "role" else piece.text for piece in pieces)
        assert said == wanted
        exported = reference(made, build_template(choice)).apply_chat_template(given, tokenize=False, **rest)
        assert exported == wanted, "the template that is exported"
        if words is WORDS:  # transformers lets texts make special tokens
            assert found.ids == reference(made, PUBLISHED[family]).apply_chat_template(given, **rest)
            seen += 1
    assert seen > 2
