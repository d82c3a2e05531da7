"""Unknown keys of messages are reported or refused, but never those that OpenAI's client sends."""

import json
from pathlib import Path
from typing import Literal

import pytest
from openai.types import chat
from pydantic import BaseModel
from tests.serve.conftest import get_error
from tests.serve.tool_call_helpers import CALL_TEXT, TOOLS

from polyhead.core.errors import did_you_mean
from polyhead.serve.openai import request_validation as unknown_fields
from polyhead.serve.openai.schema_fields import MESSAGE_FIELDS, PART_FIELDS

CHAT = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "zwei hunde"}


class Dog(BaseModel):
    age: Literal[3, 33]


def user(**fields):
    return {"role": "user", "content": "zwei hunde", **fields}


REQUIRED_FIELDS = {"/v1/completions": {"prompt": "a"}, CHAT: {"messages": [QUESTION]}}
# the path, fields of the body, and each unknown key in them with the nearest known one
ROWS = [json.loads(line) for line in (Path(__file__).parent / "unknown_keys.jsonl").read_text().splitlines()]


def test_unknown_keys_are_reported_or_refused(fields_client):
    for path, fields, keys in ROWS:
        body = {**REQUIRED_FIELDS[path], "max_tokens": 1, "seed": 1, **fields}
        answer = fields_client.ask(path, body)
        hints = [(key, f"; did you mean '{hint}'?" if hint else "") for key, hint in keys]
        if fields_client.service.strict_fields:
            error = get_error(answer)
            assert (error["code"], error["param"]) == ("unknown_parameter", next(iter(fields)))
            assert error["message"] == "unknown field " + "".join(hints[0])
        else:
            assert answer.status_code == 200, answer.text
            warning = "; ".join(f"field {key} is ignored{hint}" for key, hint in hints)
            assert answer.headers["x-warnings"] == warning


def test_few_of_many_unknown_keys_are_reported(fields_client, monkeypatch):
    if fields_client.service.strict_fields:
        return
    names = []
    hint = lambda name, *known: names.append(name) or did_you_mean(name, *known)  # noqa: E731
    monkeypatch.setattr(unknown_fields, "did_you_mean", hint)
    message = user(**{f"contnet{i}": i for i in range(20000)})
    answer = fields_client.ask(CHAT, {"messages": [message], "temperatur": 1, "userr": 2, "max_tokens": 1})
    warnings = answer.headers["x-warnings"].split("; field")
    assert len(warnings) == 4 and "'temperatur'" in warnings[0] and "'contnet1' of message 0" in warnings[3]
    assert names == ["temperatur", "userr", "contnet0", "contnet1"]


def test_other_errors_come_before_unknown_keys(fields_client):
    for messages, message in (
        ([{"role": "user", "contnet": "x"}], "message 0 has the content null"),
        ([user(audio={"id": "x"}, odd=1)], "message 0 has audio, which is not supported"),
        ([user(odd=1)] * 150, "characters; the maximum is 2000"),
    ):
        error = get_error(fields_client.ask(CHAT, {"messages": messages}))
        assert error["code"] in ("invalid_value", "text_too_long") and message in error["message"]


def get_warnings(answer):
    return str(answer.headers.get("x-warnings", ""))


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # of the client
def test_messages_of_the_openai_client_are_known(fields_client, say):
    """As objects, and as dictionaries with every field or those that were set."""
    completions, strict = fields_client.openai().chat.completions, fields_client.service.strict_fields
    options = {"model": "tiny", "seed": 1, "max_tokens": 40}
    say(fields_client, "dogs")
    text_message = completions.create(messages=[QUESTION], **options).choices[0].message
    say(fields_client, CALL_TEXT)
    call_message = completions.create(messages=[QUESTION], tools=TOOLS, **options).choices[0].message
    say(fields_client, '{"age": 3}')
    parsed_answer = completions.parse(messages=[QUESTION], response_format=Dog, **options).choices[0].message
    assert call_message.tool_calls and parsed_answer.parsed == Dog(age=3)
    parsed_warning = "" if strict else "field 'parsed' of message 1 is ignored"
    for message in (text_message, call_message, parsed_answer):
        part, calls = {"type": "text", "text": "a"}, message.tool_calls or ()
        results = [{"role": "tool", "tool_call_id": call.id, "content": [part]} for call in calls]
        all_fields, set_fields = (message.model_dump(exclude_unset=u, warnings=False) for u in (False, True))
        for version in (message, all_fields, set_fields):
            messages = [QUESTION, version, *results, QUESTION]
            say(fields_client, "dogs")
            warnings = get_warnings(completions.with_raw_response.create(messages=messages, **options))
            assert warnings in ("", parsed_warning if message is parsed_answer else "")
    say(fields_client, "dogs")
    named_answer = completions.with_raw_response.create(messages=[user(name="Ann")], **options)
    assert get_warnings(named_answer) == ("" if strict else "field 'name' of message 0 is ignored")
    nulls = {"annotations": [], **dict.fromkeys(("name", "refusal", "audio", "function_call", "tool_calls"))}
    messages = [QUESTION, {"role": "assistant", "content": "a", **nulls}, QUESTION]
    say(fields_client, "dogs")
    assert get_warnings(fields_client.ask(CHAT, {"messages": messages})) == ""


def field_names(*types):
    return {name for t in types for name in getattr(t, "model_fields", None) or t.__annotations__}


def test_every_field_of_the_openai_client_is_known():
    roles = ("System", "Developer", "User", "Assistant", "Tool")
    message_types = [getattr(chat, f"ChatCompletion{role}MessageParam") for role in roles]
    message_types += [chat.ChatCompletionMessage, chat.ParsedChatCompletionMessage]
    for fields, types in (
        (MESSAGE_FIELDS, message_types),
        (PART_FIELDS, [chat.ChatCompletionContentPartTextParam]),
    ):
        assert {*fields.known_names, *fields.client_names, *fields.own_names} >= field_names(*types)


def test_unknown_fields_of_body_are_reported_or_refused(fields_client):
    body = {"prompt": "a", "max_tokens": 1, "temperatur": 0.1, "user": "x\r\ny"}
    body |= {"frequency_penalty": 0, "logit_bias": None, "best_of": 1}
    answer = fields_client.ask("/v1/completions", body)
    hint = "; did you mean 'temperature'?"
    if fields_client.service.strict_fields:
        error = get_error(answer)
        assert error["param"] == "temperatur" and hint in error["message"]
    else:
        warning = f"field 'temperatur' is ignored{hint}; field 'user' is ignored"
        assert answer.headers["x-warnings"] == warning
