"""Tests of serve/openai/response_items.py."""

from __future__ import annotations

from typing import Any

from tests.serve.openai.responses_helpers import TALK
from tests.serve.openai.responses_helpers import live as live
from tests.serve.test_tools import CALL, CALLED
from tests.serve.tool_calls import TOOLS, written
from tests.serve.tool_calls import says as says

from polyhead.chat.tools import build_tool_choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.openai.response_items import parse_items

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]

PATH, CHAT = "/v1/responses", "/v1/chat/completions"


def test_texts_about_calls_are_of_one_message() -> None:
    call = {"type": "function_call", "call_id": "call00001", "name": "now", "arguments": "{}"}
    said = [{"role": "assistant", "content": text} for text in ("two", " dogs")]
    found = parse_items(
        [TALK[0], said[0], call, said[1], call | {"call_id": "call00002"}, TALK[0], *said, TALK[0]]
    )
    assert [message.content for message in found] == [
        TALK[0]["content"],
        "two dogs",
        TALK[0]["content"],
        "two",
        " dogs",
        TALK[0]["content"],
    ]
    assert [one.id for one in found[1].tool_calls] == ["call00001", "call00002"]
    assert found.item_indices == (0, 1, 5, 6, 7, 8)


def test_what_was_said_is_sent_back_as_it_came(live: Any, says: Any) -> None:
    says(written(live, CALL))
    output = live.ask(PATH, {"input": "hunde", "tools": FLAT}).json()["output"]
    (call,) = output
    items = [
        {"type": "message", "role": "user", "content": "hunde"},
        *output,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "snow"},
    ]
    as_chat = [
        {"role": "user", "content": "hunde"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": call["call_id"], "type": "function",
            "function": CALLED}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "snow"},
    ]  # fmt: skip
    says("a dog barks .")
    response = live.ask(PATH, {"input": items, "tools": FLAT}).json()
    prompt = live.service.chat.encode_prompt(parse_conversation(as_chat), build_tool_choice(TOOLS))
    assert response["usage"]["input_tokens"] == len(prompt) and parse_items(items) == parse_conversation(
        as_chat
    )
    assert response["output"][0]["content"][0]["text"] == "a dog barks ."
    items += [
        *response["output"],
        {"role": "developer", "content": "dogs"},
        {"role": "user", "content": "und"},
    ]
    as_chat += [{"role": "assistant", "content": "a dog barks ."}, {"role": "system", "content": "dogs"}]
    assert parse_items(items)[:-1] == parse_conversation(as_chat)


def test_calls_that_follow_one_another_are_of_one_message() -> None:
    calls = [
        {"type": "function_call", "call_id": f"call0000{i}", "name": "now", "arguments": "{}"}
        for i in range(3)
    ]
    found = parse_items(
        [{"role": "assistant", "content": "two"}, *calls[:2], {"role": "user", "content": "a"}, calls[2]]
    )
    assert [(one.role, one.content, [call.id for call in one.tool_calls]) for one in found] == [
        ("assistant", "two", ["call00000", "call00001"]),
        ("user", "a", []),
        ("assistant", "", ["call00002"]),
    ]
