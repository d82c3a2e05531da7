"""Responses over HTTP say what chat completions say, in OpenAI's other shape, whole and as they come."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from tests.serve.conftest import living
from tests.serve.openai.responses_helpers import TALK
from tests.serve.openai.responses_helpers import live as live
from tests.serve.test_tools import CALL, CALLED
from tests.serve.tool_calls import TOOLS, make, written
from tests.serve.tool_calls import says as says

from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
PATH, CHAT = "/v1/responses", "/v1/chat/completions"
LOG_PROBS = "message.output_text.logprobs"
AS_CHAT = [{"role": "system", "content": "two dogs"}, *TALK[:2], {"role": "user", "content": "zwei hunde"}]


def streamed(live: Any, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, whose lines say of each what it is."""
    text = live.ask(PATH, {**body, "stream": True}).text
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        if event.startswith(":"):
            continue
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def gathered(events: list[Any]) -> dict[str, Any]:
    """The response that events add up to; each must follow from those before it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, begun, *middle, end = events
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == begun["response"] and created["response"]["status"] == "in_progress"
    items: list[Any] = []
    for event in middle:
        kind = event["type"].removeprefix("response.")
        at = len(items) - (kind not in ("output_item.added",))
        assert event["output_index"] == at, event
        if kind == "output_item.added":
            assert not items or items[-1]["status"] != "in_progress"
            items.append(event["item"])
            continue
        item = items[at]
        if kind == "output_item.done":
            assert {**event["item"], "status": item["status"]} == item
            items[at] = event["item"]
            continue
        assert event["item_id"] == item["id"] and item["status"] == "in_progress"
        if kind.startswith("function_call_arguments"):
            done = kind.endswith("done")
            item["arguments"] += "" if done else event["delta"]
            assert not done or (event["arguments"], event["name"]) == (item["arguments"], item["name"])
            continue
        assert event["content_index"] == 0
        if kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind == "output_text.delta":
            item["content"][0]["text"] += event["delta"]
            item["content"][0]["logprobs"] += event["logprobs"]
        elif kind == "output_text.done":
            assert event["text"] == item["content"][0]["text"]
        else:
            told, part = item["content"][0], event["part"]
            assert kind == "content_part.done" and part["text"] == told["text"]
            assert part["logprobs"][: len(told["logprobs"])] == told["logprobs"]
            item["content"][0] = event["part"]  # with tokens that say nothing, such as that of the end
    assert end["response"]["output"] == items and end["type"] == f"response.{end['response']['status']}"
    assert created["response"].keys() == end["response"].keys()
    return dict(end["response"])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two responses say the same, by whatever names and whenever."""

    def bare(response: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(
            {**response, "id": "", "created_at": 0, "usage": {**response["usage"], "input_tokens_details": 0}}
        )
        names = [item.get(name, "") for item in response["output"] for name in ("id", "call_id")]
        for name in filter(None, names):
            text = text.replace(name, "")
        return dict(json.loads(text))

    return bare(one) == bare(other)


WAYS = [
    {"temperature": 0},
    {"seed": 3},
    {"seed": 4, "top_p": 0.9, "top_k": 20, "stop": ["a"]},
    {"seed": 5, "max_tokens": 4},
    {"beam_size": 2, "max_tokens": 9},
    {"seed": 6, "logprobs": True, "top_logprobs": 2, "max_tokens": 12},
    {"seed": 7, "truncate": True},
    {"temperature": 0, "frequency_penalty": 2, "presence_penalty": 0.5, "logit_bias": {"40": 3}},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_response_is_the_answer_of_chat_completions(live: Any, way: dict[str, Any]) -> None:
    whole = live.ask(CHAT, {"messages": AS_CHAT, **way}).json()
    (choice,) = whole["choices"]
    others = {
        "max_tokens": lambda n: {"max_output_tokens": n},
        "truncate": lambda _: {"truncation": "auto"},
        "logprobs": lambda _: {"include": [LOG_PROBS]},
    }
    asked: dict[str, Any] = {"input": TALK, "instructions": "two dogs"}
    for name, value in way.items():
        asked |= others.get(name, lambda value, name=name: {name: value})(value)
    answer = live.ask(PATH, asked)
    assert answer.status_code == 200 and "x-warnings" not in answer.headers
    response = answer.json()
    (item,) = response["output"]
    ended = choice["finish_reason"] == "stop"
    assert response["status"] == item["status"] == ("completed" if ended else "incomplete")
    assert response["incomplete_details"] == (None if ended else {"reason": "max_output_tokens"})
    (part,) = item["content"]
    assert (item["role"], part["type"], part["text"]) == (
        "assistant",
        "output_text",
        choice["message"]["content"],
    )
    assert part["logprobs"] == (choice["logprobs"]["content"] if "logprobs" in way else [])
    usage, counted = response["usage"], whole["usage"]
    assert (
        usage["input_tokens"]
        == counted["prompt_tokens"]
        == len(live.service.chat.encode_prompt(parse_conversation(AS_CHAT)))
    )
    assert (usage["output_tokens"], usage["total_tokens"]) == (
        counted["completion_tokens"],
        counted["total_tokens"],
    )
    assert same(gathered(streamed(live, asked)), response)


def test_a_response_tells_what_was_asked(live: Any) -> None:
    plain = live.ask(PATH, {"input": "zwei hunde", "max_output_tokens": 2, "seed": 1}).json()
    alone = {"messages": [{"role": "user", "content": "zwei hunde"}], "max_tokens": 2, "seed": 1}
    said = live.ask(CHAT, alone).json()["choices"][0]["message"]["content"]
    assert plain["output"][0]["content"][0]["text"] == said
    assert plain["object"] == "response" and plain["id"].startswith("resp_") and plain["model"] == "tiny"
    assert (plain["instructions"], plain["tools"], plain["tool_choice"]) == (None, [], "auto")
    assert plain["max_output_tokens"] == 2 and plain["text"] == {"format": {"type": "text"}}
    asked = {
        "input": "zwei", "instructions": "two", "tools": FLAT, "tool_choice": {"type": "function",
            "name": "now"},
        "parallel_tool_calls": False, "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.25,
            "truncation": "auto",
        "max_output_tokens": 3,
    }  # fmt: skip
    told = live.ask(PATH, asked).json()
    assert {name: told[name] for name in asked if name not in ("input", "tools")} == {
        name: asked[name] for name in asked if name not in ("input", "tools")
    }
    assert [tool | {"strict": None} for tool in told["tools"]] == [
        {"parameters": None, "strict": None} | tool for tool in FLAT
    ]


CASES: list[tuple[str, list[str | None]]] = [
    ("zwei hunde", ["zwei hunde"]),
    (CALL, [None]),
    ("", [""]),
    (CALL.replace("weather", "wether"), ["same"]),
]
MARKED: list[tuple[str, list[str | None]]] = [
    (f"two dogs\n{CALL}", ["two dogs", None]),
    (f"{CALL}\n{CALL}\n", [None, None]),
    (f"{CALL}\ntwo dogs", [None, "\ntwo dogs"]),
    (f"two\n{CALL}\ndogs\n{CALL}", ["two", None, "\ndogs", None]),
]  # None: a call


@pytest.mark.parametrize(("text", "wanted"), [*CASES, *MARKED], ids=lambda one: repr(one)[:40])
def test_calls_and_texts_are_items(live: Any, says: Any, text: str, wanted: list[str | None]) -> None:
    if live.service.chat.choice.name != "chatml" and (text, wanted) in MARKED:
        return  # it has no marks
    text = written(live, text)
    body = {"input": "hunde", "tools": FLAT}
    says(text)
    response = live.ask(PATH, body).json()
    assert response["status"] == "completed" and len(response["output"]) == len(wanted)
    assert response["parallel_tool_calls"] is True
    for item, said in zip(response["output"], wanted, strict=True):
        assert item["status"] == "completed"
        if said is None:
            assert item["type"] == "function_call" and item["id"].startswith("fc_") and item["call_id"]
            assert {name: item[name] for name in CALLED} == CALLED
        else:
            assert [part["text"] for part in item["content"]] == [text if said == "same" else said]
    says(text)
    assert same(gathered(streamed(live, body)), response)
    likely = {**body, "include": [LOG_PROBS]}
    says(text)
    found = gathered(streamed(live, likely))
    for item, said in zip(found["output"], wanted, strict=True):
        if said is not None and item is not found["output"][-1]:
            (part,) = item["content"]
            assert b"".join(bytes(one["bytes"] or ()) for one in part["logprobs"]) == part["text"].encode()
    says(text)
    assert same(found, live.ask(PATH, likely).json())
    answers = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "snow"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    says("a dog barks .")
    again = live.ask(PATH, {"input": [TALK[0], *response["output"], *(answers or [TALK[0]])], "tools": FLAT})
    assert again.status_code == 200, again.text
    says(text)
    (first, *rest) = live.ask(PATH, {**body, "parallel_tool_calls": False}).json()["output"]
    assert len([one for one in (first, *rest) if one["type"] == "function_call"]) == min(
        1, wanted.count(None)
    )


def test_a_call_that_must_be_is_of_its_schema(live: Any) -> None:
    body = {"input": "hunde", "tools": FLAT, "tool_choice": "required", "seed": 4, "max_output_tokens": 300}
    response = live.ask(PATH, body).json()
    asked = {"messages": [{"role": "user", "content": "hunde"}], "tools": TOOLS, "tool_choice": "required"}
    message = live.ask(CHAT, {**asked, "seed": 4, "max_tokens": 300}).json()["choices"][0]["message"]
    calls = [{name: item[name] for name in CALLED} for item in response["output"]]
    assert calls == [call["function"] for call in message["tool_calls"]] and calls
    assert same(gathered(streamed(live, body)), response)


class Place(BaseModel):
    """A form."""

    place: str
    days: int


def test_openais_client_understands_responses(live: Any, says: Any) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    says("a dog barks .")
    whole = client.responses.create(model="tiny", input="hunde", instructions="two dogs")
    assert whole.output_text == "a dog barks ." and whole.status == "completed"
    says("a dog barks .")
    with client.responses.stream(model="tiny", input=TALK, instructions="two dogs") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "a dog barks ." == stream.get_final_response().output_text
    says(written(live, CALL))
    called = client.responses.create(model="tiny", input=[{"role": "user", "content": "hunde"}], tools=FLAT)
    (call,) = called.output
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "weather",
        {"place": "Rome", "days": 2},
    )
    says("a dog barks .")
    talk = [
        {"role": "user", "content": "hunde"},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "snow"},
    ]
    assert client.responses.create(model="tiny", input=talk, tools=FLAT).output_text == "a dog barks ."
    says('{"place": "Rome", "days": 2}')
    parsed = client.responses.parse(model="tiny", input="hunde", text_format=Place)
    assert parsed.output_parsed == Place(place="Rome", days=2)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input=TALK, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id" and "send the whole conversation in input" in str(
        refused.value
    )


def test_an_error_within_a_stream_reaches_openais_client(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)

    def fails() -> None:
        raise UserError("no room for messages")

    monkeypatch.setattr(live.service.engine.engine, "step", fails)
    with pytest.raises(openai.APIError, match="no room for input"):
        list(client.responses.create(model="tiny", input="hunde", stream=True))
    *_, begun, last = streamed(live, {"input": "hunde"})
    assert last["type"] == "error" and last["sequence_number"] == begun["sequence_number"] + 1
    assert last["message"] == last["error"]["message"] and "no room for input" in last["message"]


FORM = {"type": "json_schema", "name": "place", "schema": {"type": "object",
    "properties": {"days": {"enum": [1, 2]}}, "required": ["days"],
        "additionalProperties": False}}  # fmt: skip


def test_a_text_has_the_form_that_is_asked(live: Any) -> None:
    response = live.ask(PATH, {"input": "hunde", "text": {"format": FORM}, "seed": 1}).json()
    assert json.loads(response["output"][0]["content"][0]["text"])["days"] in (1, 2)
    assert response["text"] == {"format": FORM}
    form = {"type": "json_schema", "json_schema": {"schema": FORM["schema"]}}
    asked = {"messages": [{"role": "user", "content": "hunde"}], "response_format": form, "seed": 1}
    message = live.ask(CHAT, asked).json()["choices"][0]["message"]
    assert message["content"] == response["output"][0]["content"][0]["text"]


def test_tokens_that_were_read_before_are_counted() -> None:
    with living(make("chatml", None)) as fresh:
        body = {"input": "zwei hunde bellen . " * 30, "temperature": 0, "max_output_tokens": 3}
        told = [fresh.ask(PATH, body).json() for _ in range(2)]
        assert same(*told)
        (batch,) = fresh.service.engine.engine.batches
        block = batch.cache.block_size
        first, second = (one["usage"] for one in told)
        assert first["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
        # the last token is always read, for what comes after it
        whole = (second["input_tokens"] - 1) // block * block
        assert block < whole and second["input_tokens_details"] == {
            "cached_tokens": whole,
            "cache_write_tokens": 0,
        }
        asked = {"messages": [{"role": "user", "content": body["input"]}], "n": 3, "seed": 1, "max_tokens": 3}
        usage = fresh.ask(CHAT, asked).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": whole}


def test_what_is_not_given_is_told_as_the_run_has_it() -> None:
    run = make("chatml", None)
    run.generation = run.generation.model_copy(update={"temperature": 0.5, "top_p": 0.8})
    with living(run) as fresh:
        body = {"input": "hunde", "seed": 1, "max_output_tokens": 3}
        for given in ({}, {"temperature": 0.7}, {"top_p": 0.9}):
            told = fresh.ask(PATH, body | given).json()
            assert {key: told[key] for key in ("temperature", "top_p")} == {
                "temperature": 0.5,
                "top_p": 0.8,
            } | given


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "input: missing"),
        ({"input": []}, "input", "[] is not a text or a list of items"),
        ({"input": [7]}, "input", "item 0 is 7, expected an object with role and content"),
        ({"input": [{"role": "owner", "content": "a"}]}, "input", "item 0 has the role 'owner', expected "
            "user, assistant, system, developer"),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "input", "item 0 is of the type "
            "'item_reference'; supported: message, reasoning, function_call, function_call_output"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input",
            "item 0 has a part 'input_image'; this model supports text only"),
        ({"input": [*TALK, {"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input",
            "item 3 has the role 'tool', but no earlier message calls a function"),
        ({"input": [*TALK, {"type": "function_call_output", "call_id": "x", "output": "y"}],
            "instructions": "a"}, "input", "item 3 has the role"),
        ({"input": [TALK[0], *({"type": "function_call", "call_id": one, "name": "now",
            "arguments": "{}"} for one in ("call00001", "call00002")), {"type": "function_call_output",
                "call_id": "x", "output": "y"}]}, "input", "item 3 answers the call 'x'"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}, TALK[0]]},
            "input", "item 0"),
        ({"input": [{"type": "function_call_output", "output": "y"}]}, "input", "item 0 has the call_id "
            "null, expected the call_id of a call"),
        ({"input": "a", "n": 2}, "n", "a response has one answer, but n is 2"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens", ""),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text",
            "text.format: schema is missing"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text", ""),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "text", "'xml'"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools", "tool 0 is {'type': 'web_search'}, "
            "expected"),
        ({"input": "a", "tools": TOOLS}, "tools", "tool 0 is"),
        ({"input": "a", "tools": FLAT, "tool_choice": {"type": "function", "name": "wether"}}, "tool_choice",
            "did you mean 'weather'"),
        ({"input": "a", "tools": FLAT, "tool_choice": {"type": "allowed_tools"}}, "tool_choice",
            "is not a tool_choice, expected auto, none, required or"),
        ({"input": "a", "tools": FLAT, "tool_choice": "required",
            "text": {"format": {"type": "json_object"}}}, "tool_choice", "remove text.format"),
        ({"input": "a", "top_logprobs": 2}, "top_logprobs", f"requires include=['{LOG_PROBS}']"),
        ({"input": "a", "conversation": "c"}, "conversation", "send the whole conversation in input"),
        ({"input": "a", "background": True}, "background", "answers are synchronous"),
        ({"input": "a", "reasoning": {"effort": "high"}}, "reasoning", "not supported"),
        ({"input": "x" * 3000}, "input", "3016"),
        ({"input": "a", "instructions": "x" * 3000}, "instructions", "3033"),
        ({"input": "a" * 1900, "instructions": "b" * 1900}, "instructions", "the input with its "
            "instructions has a text of 3832"),
        ({"input": "a", "prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"input": "a", "tools": [{"type": "function", "name": "max_tokens"}],
            "tool_choice": {"type": "function", "name": "max_token"}}, "tool_choice",
                "did you mean 'max_tokens'"),
        ({"input": TALK, "tools": [{"type": "function", "name": "f", "description": "x" * 3000}]}, "tools",
            "the conversation with its tools"),
        ({"input": "a", "include": [LOG_PROBS], "beam_size": 2}, "include", "only for sampled text"),
        ({"input": "a", "include": [LOG_PROBS[:-1]]}, "include", f"did you mean '{LOG_PROBS}'"),
    ],
    ids=lambda one: repr(one)[:60],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_by_name(
    live: Any, body: dict[str, Any], param: str, said: str
) -> None:
    for more in ({}, {"stream": True}):
        answer = live.ask(PATH, body | more)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == param, error
        assert said in error["message"] and "\n" not in error["message"], error
        assert "messages" not in error["message"] and "response_format" not in error["message"]


def test_what_asks_for_nothing_is_taken(live: Any) -> None:
    body = {
        "input": "a", "previous_response_id": None, "background": False, "reasoning": {"effort": None},
            "store": True,
        "user": "x", "service_tier": "auto", "truncation": None, "metadata": None, "instructions": None,
        "tools": None,
        "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}, "verbosity": "low"},
        "max_output_tokens": 2,
    }  # fmt: skip
    answer = live.ask(PATH, body)
    assert answer.status_code == 200, answer.text
    nothing = dict.fromkeys(
        ("include", "temperature", "top_p", "top_logprobs", "stream", "stream_options", "stop", "prompt")
    )
    item = {"type": None, "role": "user", "content": "a"}
    told = {"reasoning": answer.json()["reasoning"], "seed": 1, "max_output_tokens": 2}
    some = [live.ask(PATH, {"input": [item], **told, **more}).json() for more in ({}, nothing)]
    assert same(*some) and "x-warnings" not in live.ask(PATH, {"input": [item], **told, **nothing}).headers
    assert live.ask(PATH, {"input": "a", "max_output_tokens": None, "seed": 1}).status_code == 200


def test_runs_without_a_format_say_what_to_do(services: Any) -> None:
    for kind, said in (
        ("decoder", "--chat NAME"),
        ("encoder", "/v1/embeddings"),
        ("encoder-decoder", "/v1/translations"),
    ):
        error = services[kind].ask(PATH, {"input": "hunde"}).json()["error"]
        assert error["code"] == "model_not_chat" and said in error["message"]
