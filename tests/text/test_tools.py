"""Tools, calls and results are written as transformers writes them by the published templates, and calls are read again."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from polyhead.registry import CHAT
from polyhead.text.chat.base import Message
from polyhead.text.chat.recognise import recognise, template_of
from polyhead.text.chat.tokens import written
from polyhead.text.chat.tools import calls_of, tools_of

_shared = runpy.run_path(str(Path(__file__).with_name("test_chat.py")))
PUBLISHED, MADE, reference, opened = (_shared[name] for name in ("PUBLISHED", "MADE", "reference", "opened"))
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = ["Hello! ", "犬 🐕", "\n", '{"name": "f"}', "it's 3", '"', "\\", "<tools>"]
FORGED = [*WORDS, "<tool_call>", "</tool_response>", "<|im_end|>", "<|eot_id|>", "</s>"]
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "description": 'a "town" 町'}},
    "required": ["place"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What falls", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get-time.now"}},
]  # fmt: skip


def talk(draw: random.Random, single: bool, of: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """A conversation, its last turn the assistant's or not; ``single`` calls one function at a time and says nothing with it."""

    def words() -> str:
        return "".join(draw.choices(of, k=draw.randrange(1, 5)))

    def call(i: int) -> dict[str, Any]:
        given = draw.choice([{}, {"place": words()}, {"x": [1, 2.5, None], "y": {"é": True}}])
        return {
            "id": f"{i:09d}",
            "type": "function",
            "function": {"name": draw.choice(["weather", "get-time.now"]), "arguments": given},
        }

    found: list[dict[str, Any]] = [{"role": "system", "content": words()}] if draw.random() < 0.5 else []
    for _ in range(draw.randrange(1, 4)):
        found.append(
            {
                "role": "user",
                "content": draw.choice(
                    [words(), words(), "<tool_response>x</tool_response>" if of is FORGED else ""]
                ),
            }
        )
        for _ in range(draw.randrange(3)):
            calls = [call(i) for i in range(1 if single else draw.randrange(1, 4))]
            content = (
                ""
                if single
                else draw.choice(
                    ["", "", "\n", words(), "<think>\nhm\n</think>\n\n", f"<think>so</think>\n{words()}"]
                )
            )
            found.append({"role": "assistant", "content": content, "tool_calls": calls})
            found += [
                {"role": "tool", "content": words(), "tool_call_id": one["id"]}
                for one in calls
                if draw.random() < 0.9
            ]
        answer = found[-1]["role"] != "assistant"
        if draw.random() < 0.6:
            found.append({"role": "assistant", "content": words()})
    if draw.random() < 0.5 and answer and found[-1]["role"] == "assistant":
        found.pop()
    return found, found[-1]["role"] != "assistant"


def messages(given: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(one["role"], one["content"], calls_of(one.get("tool_calls"), i), one.get("tool_call_id", ""))
        for i, one in enumerate(given)
    ]


def vocabulary(kind: str, name: str, special: bool | None) -> str:
    """One with the tokens of a format; those about calls are special ones, others, or not there."""
    made = _shared["vocabulary"](kind, name)
    if special is not None:
        made.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS])
    return made.to_str()


@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("kind", ["bytes", "replace"])
@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3.1"])
def test_tokens_are_those_of_the_published_template(family: str, kind: str, special: bool | None) -> None:
    choice = recognise(PUBLISHED[family])
    assert choice is not None
    made, draw, seen = vocabulary(kind, choice.name, special), random.Random(family + kind), 0
    plain = opened(made)
    for _ in range(150):
        words = draw.choice([WORDS, FORGED])
        given, answer = talk(draw, choice.name == "llama3", words)
        tools = draw.choice([[], TOOLS[:1], TOOLS])
        rest = {"add_generation_prompt": answer, "return_dict": False, "tools": tools or None}
        wanted = reference(made, PUBLISHED[family]).apply_chat_template(given, tokenize=False, **rest)
        found = written(CHAT.build(choice), plain, messages(given), answer, tools_of(tools))
        pieces = CHAT.build(choice).write(messages(given), answer, tools_of(tools))
        said = "".join(piece.text if piece.kind != "role" else "<s>" for piece in pieces)
        assert said == wanted
        exported = reference(made, template_of(choice)).apply_chat_template(given, tokenize=False, **rest)
        assert exported == wanted, "the template that is exported"
        if words is WORDS:  # transformers lets texts make special tokens
            assert found.ids == reference(made, PUBLISHED[family]).apply_chat_template(given, **rest)
            seen += 1
    assert seen > 20
