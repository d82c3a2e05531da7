import json
import re

import pytest
from tests.serve.conftest import serve_run
from tests.serve.tool_call_helpers import (
    CALL_FUNCTION,
    CALL_NOW,
    CALL_TEXT,
    QUESTION,
    TOOLS,
    build_tool_run,
    to_format,
)

PATH = "/v1/chat/completions"


@pytest.fixture(
    scope="module",
    params=[("chatml", None), ("chatml", True), ("chatml", False), ("llama3", None), ("mistral", True)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def mark_client(request):
    """A client of a model for each format and kind of marks of calls."""
    with serve_run(build_tool_run(*request.param)) as client:
        yield client


def join_stream(events):
    """The choices that a stream adds up to."""
    choices = {}
    for event in events:
        for part in event["choices"]:
            is_first, delta = part["index"] not in choices, part["delta"]
            choice = choices.setdefault(part["index"], {"content": None, "tool_calls": []})
            assert ("role" in delta) == is_first and delta.keys() <= {"role", "content", "tool_calls"}
            if "content" in delta:
                choice["content"] = (choice["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                assert call.pop("index") == len(choice["tool_calls"])
                choice["tool_calls"].append(call)
            choice["finish_reason"] = part["finish_reason"]
    return [choices[i] for i in range(len(choices))]


def check_calls(calls, names):
    assert len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        function = call["function"]
        assert call.keys() == {"id", "type", "function"} and call["type"] == "function"
        assert re.fullmatch("[0-9a-z]{9}", call["id"]) and function.keys() == {"name", "arguments"}
        assert function["name"] in names
        arguments = json.loads(function["arguments"])
        if function["name"] == "now":
            assert arguments == {}
        else:
            assert arguments.keys() == {"place", "days"}
            assert arguments["place"] in ("Rome", "Oslo") and 1 <= arguments["days"] <= 9


@pytest.mark.parametrize(("parallel", "tool_choice"), [(True, "required"), (False, CALL_NOW)])
def test_required_calls_fit_their_schema(tool_client, tool_choice, parallel):
    body = {
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": tool_choice,
        "parallel_tool_calls": parallel,
        "n": 3 if parallel else 2,
        "seed": 4,
        "max_tokens": 150 if parallel else 60,  # it writes several calls
    }
    choices = tool_client.ask(PATH, body).json()["choices"]
    stream_result = join_stream(tool_client.stream(PATH, body))
    beams = tool_client.ask(PATH, {**body, "n": 1, "beam_size": 2, "max_tokens": 40}).json()["choices"]
    messages = [c["message"] | {"finish_reason": c["finish_reason"]} for c in (*choices, *beams)]
    messages += stream_result
    complete = [message for message in messages if message["finish_reason"] != "length"]
    for message in complete:
        assert message["finish_reason"] == "tool_calls" and message["content"] is None
        calls = message["tool_calls"]
        assert len(calls) >= 1 and (parallel is not False or len(calls) == 1)
        check_calls(calls, {"now"} if tool_choice is CALL_NOW else {"now", "weather"})
    assert complete
    for choice, stream in zip(choices, stream_result, strict=True):
        functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
        assert [call["function"] for call in stream["tool_calls"]] == functions


@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        ("zwei hunde", "zwei hunde", 0),
        (CALL_TEXT, None, 1),
        (CALL_TEXT.replace("weather", "wether"), "same", 0),
        (CALL_TEXT.replace("{", "("), "same", 0),
        ("", "", 0),
        (f"two dogs\n{CALL_TEXT}", "two dogs", 1),
        (f"{CALL_TEXT}\n{CALL_TEXT}\n", None, 2),
        (f"<tool_call>\n{CALL_TEXT}", "<tool_call>", 1),
        (CALL_TEXT[:-3], "same", 0),
    ],
    ids=range(9),
)
def test_optional_calls_are_parsed_and_text_is_content(mark_client, say, text, content, n_calls):
    chat = mark_client.service.chat.choice.name
    if chat != "chatml" and (n_calls > 1 or text.count("tool_call>") % 2 or text.startswith("two")):
        return  # of marks that the format does not have
    text = to_format(chat, text)
    content = text if content == "same" else content
    body = {"messages": QUESTION, "tools": TOOLS}
    functions, reason = [CALL_FUNCTION] * n_calls, "tool_calls" if n_calls else "stop"
    say(mark_client, text)
    (choice,) = mark_client.ask(PATH, body).json()["choices"]
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == (content, reason)
    assert [call["function"] for call in message.get("tool_calls", [])] == functions
    check_calls(message.get("tool_calls", []), {"weather"})
    say(mark_client, text)
    (stream,) = join_stream(mark_client.stream(PATH, body))
    assert (stream["content"], stream["finish_reason"]) == (content, reason)
    assert [call["function"] for call in stream["tool_calls"]] == functions
    say(mark_client, text)
    (choice,) = mark_client.ask(PATH, {**body, "parallel_tool_calls": False}).json()["choices"]
    assert len(choice["message"].get("tool_calls", [])) == min(1, n_calls)
    for without_tools in ({"messages": QUESTION}, {**body, "tool_choice": "none"}):
        say(mark_client, text)
        (choice,) = mark_client.ask(PATH, without_tools).json()["choices"]
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
        if "<tool_call>" in mark_client.run.tokenizer.special_tokens:  # which have no text
            text = re.sub(r"</?tool_call>|\[TOOL_CALLS\] ", "", text)
        assert choice["message"]["content"] == text
