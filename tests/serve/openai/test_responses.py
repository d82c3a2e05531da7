"""Responses over HTTP equal chat completions, in OpenAI's other format, as one answer and as a stream."""

import json

import openai
import pytest
from pydantic import BaseModel
from tests.serve.conftest import serve_run, with_generation
from tests.serve.openai.chat_helpers import ITEMS
from tests.serve.tool_call_helpers import (
    CALL_FUNCTION,
    CALL_TEXT,
    FLAT_TOOLS,
    TOOLS,
    build_tool_run,
    to_format,
)

from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
LOGPROBS = "message.output_text.logprobs"
MESSAGES = [{"role": "system", "content": "two dogs"}, *ITEMS[:2], {"role": "user", "content": "zwei hunde"}]


def stream_events(client, body):
    """The events of a stream, whose lines name the type of each."""
    text = client.ask(PATH, {**body, "stream": True}).text
    events = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        if not part.startswith(":"):
            name, data = part.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def join_events(events):
    """The response that events add up to; each must fit those before it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created_event, in_progress, *middle, end = events
    assert (created_event["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created_event["response"] == in_progress["response"]
    assert created_event["response"]["status"] == "in_progress"
    items = []
    for event in middle:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert not items or items[-1]["status"] != "in_progress"
            items.append(event["item"])
            continue
        item = items[-1]
        assert event["output_index"] == len(items) - 1, event
        if kind == "output_item.done":
            assert {**event["item"], "status": item["status"]} == item
            items[-1] = event["item"]
            continue
        assert event["item_id"] == item["id"] and item["status"] == "in_progress"
        if kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        elif kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind == "output_text.delta":
            item["content"][0]["text"] += event["delta"]
            item["content"][0]["logprobs"] += event["logprobs"]
        elif kind == "output_text.done":
            assert event["text"] == item["content"][0]["text"]
        else:
            previous_part, part = item["content"][0], event["part"]
            assert kind == "content_part.done" and part["text"] == previous_part["text"]
            assert part["logprobs"][: len(previous_part["logprobs"])] == previous_part["logprobs"]
            item["content"][0] = part  # with tokens that have no text, such as that of the end
        assert event.get("content_index", 0) == 0
    assert end["response"]["output"] == items and end["type"] == f"response.{end['response']['status']}"
    assert created_event["response"].keys() == end["response"].keys()
    return dict(end["response"])


def without_ids(response):
    """A response without its ids, times and number of cached tokens."""
    usage = {**response["usage"], "input_tokens_details": 0}
    text = json.dumps({**response, "id": "", "created_at": 0, "usage": usage})
    for item in response["output"]:
        for name in filter(None, (item.get("id"), item.get("call_id"))):
            text = text.replace(name, "")
    return json.loads(text)


def get_text(response):
    return str(response["output"][0]["content"][0]["text"])


@pytest.mark.parametrize(
    ("options", "other_names"),
    [
        ({"temperature": 0}, {}),
        ({"seed": 3}, {}),
        ({"seed": 4, "top_p": 0.9, "top_k": 20, "stop": ["a"]}, {}),
        ({"seed": 5, "max_tokens": 4}, {"max_output_tokens": 4}),
        ({"beam_size": 2, "max_tokens": 9}, {"max_output_tokens": 9}),
        (
            {"seed": 6, "top_logprobs": 2, "logprobs": True, "max_tokens": 12},
            {"include": [LOGPROBS], "max_output_tokens": 12},
        ),
        ({"seed": 7, "truncate": True}, {"truncation": "auto"}),
        ({"temperature": 0, "frequency_penalty": 2, "presence_penalty": 0.5, "logit_bias": {"40": 3}}, {}),
    ],
    ids=range(8),
)
def test_response_equals_the_chat_completion(tool_client, options, other_names):
    options = {"max_tokens": 30, **options}
    answer = tool_client.ask(CHAT, {"messages": MESSAGES, **options}).json()
    (choice,) = answer["choices"]
    fields = {k: v for k, v in options.items() if k not in ("max_tokens", "truncate", "logprobs")}
    body = {"input": ITEMS, "instructions": "two dogs", "max_output_tokens": 30, **fields, **other_names}
    http_answer = tool_client.ask(PATH, body)
    assert http_answer.status_code == 200 and "x-warnings" not in http_answer.headers
    response = http_answer.json()
    (item,) = response["output"]
    is_complete = choice["finish_reason"] == "stop"
    assert response["status"] == item["status"] == ("completed" if is_complete else "incomplete")
    reason = None if is_complete else {"reason": "max_output_tokens"}
    assert response["incomplete_details"] == reason
    (part,) = item["content"]
    assert (item["role"], part["type"]) == ("assistant", "output_text")
    assert part["text"] == choice["message"]["content"]
    assert part["logprobs"] == (choice["logprobs"]["content"] if "logprobs" in options else [])
    prompt = tool_client.service.chat.encode_prompt(parse_conversation(MESSAGES))
    usage = [response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert usage == [answer["usage"][name] for name in names] and usage[0] == len(prompt)
    assert without_ids(join_events(stream_events(tool_client, body))) == without_ids(response)


def test_response_repeats_the_fields_of_the_request(tool_client):
    response = tool_client.ask(PATH, {"input": "zwei hunde", "max_output_tokens": 2, "seed": 1}).json()
    body = {"messages": [{"role": "user", "content": "zwei hunde"}], "max_tokens": 2, "seed": 1}
    message = tool_client.ask(CHAT, body).json()["choices"][0]["message"]
    assert get_text(response) == message["content"]
    assert response["object"] == "response" and response["id"].startswith("resp_")
    defaults = {"model": "tiny", "instructions": None, "tools": [], "tool_choice": "auto"}
    defaults |= {"max_output_tokens": 2, "text": {"format": {"type": "text"}}}
    assert {name: response[name] for name in defaults} == defaults
    fields = {"instructions": "two", "tool_choice": {"type": "function", "name": "now"}, "truncation": "auto"}
    fields |= {"parallel_tool_calls": False, "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.25}
    fields |= {"max_output_tokens": 3}
    response = tool_client.ask(PATH, {"input": "zwei", "tools": FLAT_TOOLS, **fields}).json()
    assert {name: response[name] for name in fields} == fields
    expected = [{"parameters": None, "strict": None} | tool for tool in FLAT_TOOLS]
    assert [tool | {"strict": None} for tool in response["tools"]] == expected


CALL = None
OUTPUTS: list[tuple[str, list[str | None]]] = [  # the text of the model, and the items of the output
    ("zwei hunde", ["zwei hunde"]),
    (CALL_TEXT, [CALL]),
    ("", [""]),
    (CALL_TEXT.replace("weather", "wether"), ["same"]),
    (f"two dogs\n{CALL_TEXT}", ["two dogs", CALL]),
    (f"{CALL_TEXT}\n{CALL_TEXT}\n", [CALL, CALL]),
    (f"{CALL_TEXT}\ntwo dogs", [CALL, "\ntwo dogs"]),
    (f"two\n{CALL_TEXT}\ndogs\n{CALL_TEXT}", ["two", CALL, "\ndogs", CALL]),
]


@pytest.mark.parametrize(("text", "items"), OUTPUTS, ids=range(8))
def test_calls_and_texts_are_items(tool_client, say, text, items):
    chat = tool_client.service.chat.choice.name
    if chat != "chatml" and len(items) > 1:
        return  # the format has no marks of calls
    text = to_format(chat, text)
    body = {"input": "hunde", "tools": FLAT_TOOLS}

    def respond(**fields):
        say(tool_client, text)
        return dict(tool_client.ask(PATH, {**body, **fields}).json())

    response = respond()
    assert response["status"] == "completed" and len(response["output"]) == len(items)
    assert response["parallel_tool_calls"] is True
    for item, content in zip(response["output"], items, strict=True):
        assert item["status"] == "completed"
        if content is CALL:
            assert item["type"] == "function_call" and item["id"].startswith("fc_") and item["call_id"]
            assert {name: item[name] for name in CALL_FUNCTION} == CALL_FUNCTION
        else:
            assert [part["text"] for part in item["content"]] == [text if content == "same" else content]
    say(tool_client, text)
    assert without_ids(join_events(stream_events(tool_client, body))) == without_ids(response)
    say(tool_client, text)
    stream_result = join_events(stream_events(tool_client, {**body, "include": [LOGPROBS]}))
    for item in stream_result["output"][:-1]:
        for part in item.get("content", ()):
            data = b"".join(bytes(token["bytes"] or ()) for token in part["logprobs"])
            assert data == part["text"].encode()
    assert without_ids(stream_result) == without_ids(respond(include=[LOGPROBS]))
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    ids = [call["call_id"] for call in calls]
    results = [{"type": "function_call_output", "call_id": id, "output": "snow"} for id in ids]
    say(tool_client, "a dog barks .")
    conversation = [ITEMS[0], *response["output"], *(results or [ITEMS[0]])]
    assert tool_client.ask(PATH, {**body, "input": conversation}).status_code == 200
    output = respond(parallel_tool_calls=False)["output"]
    assert [item["type"] for item in output].count("function_call") == min(1, items.count(CALL))


class Place(BaseModel):
    """A structured output."""

    place: str
    days: int


def test_openai_client_reads_responses(tool_client, say):
    responses = tool_client.openai().responses
    create = responses.create
    say(tool_client, "a dog barks .")
    response = create(model="tiny", input="hunde", instructions="two dogs")
    assert response.output_text == "a dog barks ." and response.status == "completed"
    say(tool_client, "a dog barks .")
    with responses.stream(model="tiny", input=ITEMS, instructions="two dogs") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "a dog barks ." == stream.get_final_response().output_text
    say(tool_client, to_format(tool_client.service.chat.choice.name, CALL_TEXT))
    question = {"role": "user", "content": "hunde"}
    (call,) = create(model="tiny", input=[question], tools=FLAT_TOOLS).output
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments) == {"place": "Rome", "days": 2}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "snow"}
    say(tool_client, "a dog barks .")
    response = create(model="tiny", input=[question, call, result], tools=FLAT_TOOLS)
    assert response.output_text == "a dog barks ."
    say(tool_client, '{"place": "Rome", "days": 2}')
    response = responses.parse(model="tiny", input="hunde", text_format=Place)
    assert response.output_parsed == Place(place="Rome", days=2)
    with pytest.raises(openai.BadRequestError, match="send the whole conversation in input") as error:
        create(model="tiny", input=ITEMS, previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"


def test_error_in_a_stream_is_an_event(tool_client, monkeypatch):
    def fail():
        raise UserError("no room for messages")

    monkeypatch.setattr(tool_client.service.engine.engine, "step", fail)
    with pytest.raises(openai.APIError, match="no room for input"):
        list(tool_client.openai().responses.create(model="tiny", input="hunde", stream=True))
    *_, previous_part, last = stream_events(tool_client, {"input": "hunde"})
    assert last["type"] == "error" and last["sequence_number"] == previous_part["sequence_number"] + 1
    assert last["message"] == last["error"]["message"] and "no room for input" in last["message"]


SCHEMA = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
SCHEMA["additionalProperties"] = False
FORMAT = {"type": "json_schema", "name": "place", "schema": SCHEMA}
REQUIRED = {"tool_choice": "required", "parallel_tool_calls": False}


@pytest.mark.parametrize(
    ("fields", "chat_fields"),
    [
        ({"tools": FLAT_TOOLS, **REQUIRED}, {"tools": TOOLS, **REQUIRED}),
        (
            {"text": {"format": FORMAT}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ),
    ],
    ids=["call", "text format"],
)
def test_constrained_response_equals_that_of_chat(tool_client, fields, chat_fields):
    body = {"input": "hunde", "seed": 4, "max_output_tokens": 150, **fields}
    response = tool_client.ask(PATH, body).json()
    messages = [{"role": "user", "content": "hunde"}]
    chat_body = {"messages": messages, "seed": 4, "max_tokens": 150, **chat_fields}
    message = tool_client.ask(CHAT, chat_body).json()["choices"][0]["message"]
    if "tools" in fields:
        calls = [{name: item[name] for name in CALL_FUNCTION} for item in response["output"]]
        assert calls == [call["function"] for call in message["tool_calls"]] and calls
    else:
        assert message["content"] == get_text(response) and response["text"] == fields["text"]
        assert json.loads(get_text(response))["days"] in (1, 2)
    assert without_ids(join_events(stream_events(tool_client, body))) == without_ids(response)


def test_cached_tokens_and_sampling_are_reported():
    defaults = {"temperature": 0.5, "top_p": 0.8}
    with serve_run(with_generation(build_tool_run("chatml", None), **defaults)) as client:
        body = {"input": "zwei hunde bellen . " * 30, "temperature": 0, "max_output_tokens": 3}
        responses = [client.ask(PATH, body).json() for _ in range(2)]
        assert without_ids(responses[0]) == without_ids(responses[1])
        first, second = (response["usage"] for response in responses)
        (batch,) = client.service.engine.engine.batches
        block_size = batch.cache.block_size
        # the last token is always computed, for what comes after it
        n_cached = (second["input_tokens"] - 1) // block_size * block_size
        assert first["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
        assert second["input_tokens_details"] == {"cached_tokens": n_cached, "cache_write_tokens": 0}
        assert n_cached > block_size
        chat_body = {"messages": [{"role": "user", "content": body["input"]}], "n": 3, "max_tokens": 3}
        usage = client.ask(CHAT, chat_body).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": n_cached}
        for fields in ({}, {"temperature": 0.7}, {"top_p": 0.9}):
            response = client.ask(PATH, {"input": "hunde", "max_output_tokens": 3, **fields}).json()
            assert {name: response[name] for name in defaults} == defaults | fields


def test_fields_without_effect_are_accepted(tool_client):
    names = ("previous_response_id", "truncation", "metadata", "instructions", "tools")
    body = {"input": "a", "background": False, "reasoning": {"effort": None}, "store": True}
    body |= {"user": "x", "service_tier": "auto", "include": ["reasoning.encrypted_content"]}
    body |= {"text": {"format": {"type": "text"}, "verbosity": "low"}, "max_output_tokens": 2}
    answer = tool_client.ask(PATH, body | dict.fromkeys(names))
    assert answer.status_code == 200, answer.text
    names = ("include", "temperature", "top_p", "top_logprobs", "stream", "stream_options", "stop", "prompt")
    item = {"type": None, "role": "user", "content": "a"}
    body = {"input": [item], "reasoning": answer.json()["reasoning"], "seed": 1, "max_output_tokens": 2}
    answers = [tool_client.ask(PATH, fields) for fields in (body, body | dict.fromkeys(names))]
    assert without_ids(answers[0].json()) == without_ids(answers[1].json())
    assert "x-warnings" not in answers[1].headers
    with_default = {"input": "a", "max_output_tokens": None, "seed": 1}
    assert tool_client.ask(PATH, with_default).status_code == 200
