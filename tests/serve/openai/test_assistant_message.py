"""Tests of serve/openai/assistant_message.py."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.serve.tool_calls import TOOLS, written
from tests.serve.tool_calls import live as live
from tests.serve.tool_calls import says as says

PATH = "/v1/chat/completions"

NOW = {"type": "function", "function": {"name": "now"}}

ASK = [{"role": "user", "content": "hunde"}]

CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome", "days": 2}}\n</tool_call>'

CALLED = {"name": "weather", "arguments": '{"place": "Rome", "days": 2}'}


def gathered(events: list[Any]) -> list[dict[str, Any]]:
    """The messages that a stream adds up to, and how they ended."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            told = found.setdefault(choice["index"], {"content": None, "tool_calls": []})
            delta = choice["delta"]
            assert ("role" in delta) == (len(told) == 2) and delta.keys() <= {"role", "content", "tool_calls"}
            told["role"] = "assistant"
            if "content" in delta:
                told["content"] = (told["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                assert call.pop("index") == len(told["tool_calls"])
                told["tool_calls"].append(call)
            if choice["finish_reason"]:
                told["finish_reason"] = choice["finish_reason"]
    return [found[i] for i in range(len(found))]


def check_calls(calls: Any, allowed: set[str]) -> None:
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert call.keys() == {"id", "type", "function"} and call["type"] == "function"
        assert re.fullmatch("[0-9a-z]{9}", call["id"]) and call["function"].keys() == {"name", "arguments"}
        assert call["function"]["name"] in allowed
        given = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "now":
            assert given == {}
        else:
            assert (
                given.keys() == {"place", "days"}
                and given["place"] in ("Rome", "Oslo")
                and 1 <= given["days"] <= 9
            )


@pytest.mark.parametrize("several", [True, False, None])
@pytest.mark.parametrize("must", ["required", NOW], ids=["required", "now"])
def test_an_answer_that_must_call_does(live: Any, must: Any, several: bool | None) -> None:
    body = {
        "messages": ASK,
        "tools": TOOLS,
        "tool_choice": must,
        "parallel_tool_calls": several,
        "n": 3,
        "seed": 4,
        "max_tokens": 300,
    }
    choices = live.ask(PATH, body).json()["choices"]
    streamed = gathered(live.events(PATH, body))
    beams = live.ask(PATH, {**body, "n": 1, "beam_size": 2, "max_tokens": 120}).json()["choices"]
    ended = 0
    for choice in [*choices, *beams, *({"message": one, **one} for one in streamed)]:
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        ended += 1
        assert choice["finish_reason"] == "tool_calls" and message["content"] is None
        assert len(message["tool_calls"]) >= 1 and (several is not False or len(message["tool_calls"]) == 1)
        check_calls(message["tool_calls"], {"now"} if must is NOW else {"now", "weather"})
    assert ended >= 4
    for one, other in zip(choices, streamed, strict=True):
        told = [call["function"] for call in one["message"].get("tool_calls", [])]
        assert [call["function"] for call in other["tool_calls"]] == told


CASES: list[tuple[str, str | None, list[str], str]] = [
    ("zwei hunde", "zwei hunde", [], "stop"),
    (CALL, None, ["weather"], "tool_calls"),
    (CALL.replace("weather", "wether"), "same", [], "stop"),
    (CALL.replace("{", "("), "same", [], "stop"),
    ("", "", [], "stop"),
]  # fmt: skip

MARKED: list[tuple[str, str | None, list[str], str]] = [
    (f"two dogs\n{CALL}", "two dogs", ["weather"], "tool_calls"),
    (f"{CALL}\n{CALL}\n", None, ["weather", "weather"], "tool_calls"),
    (f"<tool_call>\n{CALL}", "<tool_call>", ["weather"], "tool_calls"),
    (CALL[:-3], "same", [], "stop"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "content", "names", "reason"), [*CASES, *MARKED], ids=lambda one: repr(one)[:40]
)
def test_where_the_model_decides_calls_are_read_and_all_else_stays_text(
    live: Any, says: Any, text: str, content: str | None, names: list[str], reason: str
) -> None:
    if live.service.chat.choice.name != "chatml" and (text, content, names, reason) in MARKED:
        return  # it has no marks
    text = written(live, text)
    content = text if content == "same" else content
    body = {"messages": ASK, "tools": TOOLS}
    says(text)
    (choice,) = live.ask(PATH, body).json()["choices"]
    assert choice["message"]["content"] == content and choice["finish_reason"] == reason
    assert [call["function"] for call in choice["message"].get("tool_calls", [])] == [CALLED] * len(names)
    check_calls(choice["message"].get("tool_calls", []), set(names))
    says(text)
    (streamed,) = gathered(live.events(PATH, body))
    assert streamed["content"] == content and streamed["finish_reason"] == reason
    assert [call["function"] for call in streamed["tool_calls"]] == [CALLED] * len(names)
    says(text)
    (choice,) = live.ask(PATH, {**body, "parallel_tool_calls": False}).json()["choices"]
    assert len(choice["message"].get("tool_calls", [])) == min(1, len(names))
    for without in ({"messages": ASK}, {**body, "tool_choice": "none"}):
        says(text)
        (choice,) = live.ask(PATH, without).json()["choices"]
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
        silent = "<tool_call>" in live.run.tokenizer.special_tokens  # which say nothing
        seen = re.sub(r"</?tool_call>|\[TOOL_CALLS\] ", "", text) if silent else text
        assert choice["message"]["content"] == seen
