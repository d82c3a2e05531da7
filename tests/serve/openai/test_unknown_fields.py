"""Keys within messages are told or refused as those of a body are, and never what OpenAI's client sends by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types import chat, responses
from pydantic import BaseModel
from tests.serve.conftest import living
from tests.serve.refusals_helpers import refused
from tests.serve.test_tools import NOW
from tests.serve.tool_calls import TOOLS, make

from polyhead.core.errors import did_you_mean
from polyhead.serve.http.limits import Limits
from polyhead.serve.openai import unknown_fields
from polyhead.serve.openai.schemas import ChatBody
from polyhead.serve.openai.unknown_fields import (
    ITEM_FIELDS,
    ITEM_PART_FIELDS,
    MESSAGE_FIELDS,
    PART_FIELDS,
    find_unknown_fields,
)

CHAT, PATH = "/v1/chat/completions", "/v1/responses"
ASK = {"role": "user", "content": "zwei hunde"}


class Dog(BaseModel):
    age: Literal[3, 33]


@pytest.fixture(scope="module", params=[False, True], ids=["lenient", "strict"])
def live(request: Any) -> Iterator[Any]:
    with living(make("chatml", None), strict_fields=request.param) as found:
        yield found


ODD: list[tuple[str, Any, list[tuple[str, str]]]] = [
    (CHAT, [{**ASK, "contnet": "x"}], [("contnet' of message 0", "; did you mean 'content'?")]),
    (CHAT, [ASK, {"role": "assistant", "content": "a"}, {**ASK, "zzz": 0}], [("zzz' of message 2", "")]),
    (CHAT, [{"role": "user", "content": [{"type": "text", "text": "a", "txet": "b"}]}],
        [("txet' of part 0 of message 0", "; did you mean 'text'?")]),
    (CHAT, [{**ASK, "b": 1, "a": 2, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b",
        "c": 3}]}], [("a' of message 0", ""), ("b' of message 0", ""), ("c' of part 1 of message 0", "")]),
    (PATH, [{**ASK, "rolle": "x"}], [("rolle' of item 0", "; did you mean 'role'?")]),
    (PATH, [{"role": "user", "content": [{"type": "input_text", "text": "a", "odd": 1}]}],
        [("odd' of part 0 of item 0", "")]),
    (PATH, [ASK, {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}", "argument": 1},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a",
            "odd": 1}]}],
        [("argument' of item 1", "; did you mean 'arguments'?"), ("odd' of part 0 of item 2", "")]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "said", "wanted"), ODD, ids=[str(i) for i in range(len(ODD))])
def test_keys_without_a_meaning_are_told_or_refused(live: Any, path: str, said: Any, wanted: Any) -> None:
    field = "messages" if path == CHAT else "input"
    answer = live.ask(path, {field: said, "seed": 1})
    if live.service.strict_fields:
        error = answer.json()["error"]
        (name, hint), *_ = wanted
        assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", field)
        assert error["message"] == f"unknown field '{name}{hint}"
        return
    assert answer.status_code == 200
    assert answer.headers["x-warnings"] == "; ".join(
        f"field '{name} is ignored{hint}" for name, hint in wanted
    )


def test_a_body_and_its_messages_are_told_together_and_few_of_them(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if live.service.strict_fields:
        return
    sought: list[str] = []
    monkeypatch.setattr(
        unknown_fields, "did_you_mean", lambda name, *known: sought.append(name) or did_you_mean(name, *known)
    )
    many = {f"contnet{i}": i for i in range(20000)}
    answer = live.ask(CHAT, {"messages": [{**ASK, **many}], "temperatur": 1, "userr": 2, "max_tokens": 1})
    told = answer.headers["x-warnings"].split("; field")
    assert len(told) == 4 and "'temperatur'" in told[0] and "'contnet1' of message 0" in told[3]
    assert sought == ["contnet0", "contnet1"]
    assert find_unknown_fields(ChatBody, {"messages": [{**ASK, "a": 1}] * 9}, False, 0) == []


def test_what_is_wrong_besides_is_told_first(live: Any) -> None:
    for said, message in (
        ([{"role": "user", "contnet": "x"}], "message 0 has the content null"),
        ([{**ASK, "audio": {"id": "x"}, "odd": 1}], "message 0 has audio, which is not supported"),
    ):
        error = live.ask(CHAT, {"messages": said}).json()["error"]
        assert error["code"] == "invalid_value" and message in error["message"]


def warnings(answer: Any) -> str:
    return str(answer.headers.get("x-warnings", ""))


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # the client's own
def test_what_the_client_echoes_in_a_conversation_is_taken(live: Any) -> None:
    """Messages as they came, as objects and as dictionaries with every field that they have."""
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    raw: Any = client.chat.completions.with_raw_response
    ways = {"model": "tiny", "seed": 1, "max_tokens": 300}
    plain = client.chat.completions.create(messages=[ASK], **ways).choices[0].message  # type: ignore[call-overload]
    called = client.chat.completions.create(  # type: ignore[call-overload]
        messages=[ASK], tools=TOOLS, tool_choice=NOW, parallel_tool_calls=False, **ways
    ).choices[0].message  # fmt: skip
    parsed = client.chat.completions.parse(messages=[ASK], response_format=Dog, **ways).choices[0].message
    for message in (plain, called, parsed):
        answers = [
            {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "a"}]}
            for call in message.tool_calls or ()
        ]
        for said in (
            message,
            message.model_dump(warnings=False),
            message.model_dump(exclude_unset=True, warnings=False),
        ):
            answer = raw.create(messages=[ASK, said, *answers, ASK], **ways)
            quiet = (
                "field 'parsed' of message 1 is ignored"
                if message is parsed and not live.service.strict_fields
                else ""
            )
            assert warnings(answer) in ("", quiet)
    assert called.tool_calls
    named = raw.create(messages=[{**ASK, "name": "Ann"}], **ways)
    told = "" if live.service.strict_fields else "field 'name' of message 0 is ignored"
    assert warnings(named) == told
    null = {
        "name": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert (
        warnings(live.ask(CHAT, {"messages": [ASK, {"role": "assistant", "content": "a", **null}, ASK]}))
        == ""
    )


def test_what_the_client_echoes_of_responses_is_taken(live: Any) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    ways: Any = {"model": "tiny", "max_output_tokens": 300, "extra_body": {"seed": 1}}
    flat: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    logged = client.responses.create(input="hunde", include=["message.output_text.logprobs"], **ways)
    called = client.responses.create(
        input="hunde",
        tools=flat,
        tool_choice={"type": "function", "name": "now"},
        parallel_tool_calls=False,
        **ways,
    )
    parsed = client.responses.parse(input="hunde", text_format=Dog, **ways)
    assert logged.output[0].content[0].logprobs and called.output[0].type == "function_call"
    for response in (logged, called, parsed):
        for items in (response.output, [item.model_dump() for item in response.output]):
            outputs = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "a"}
                for item in response.output
                if item.type == "function_call"
            ]
            answer = client.responses.with_raw_response.create(
                input=[ASK, *items, *outputs, {**ASK, "type": "message"}], **ways
            )
            odd = [told for told in warnings(answer).split("; ") if told and "'parsed" not in told]
            assert not odd and not (live.service.strict_fields and warnings(answer))


def names(*types: Any) -> set[str]:
    return {
        name
        for one in types
        for name in (one.model_fields if hasattr(one, "model_fields") else one.__annotations__)
    }


def test_every_key_that_the_client_knows_is_known_here() -> None:
    def all_of(keys: Any) -> frozenset[str]:
        return frozenset(keys.known_names | keys.client_names | keys.own_names)

    assert all_of(MESSAGE_FIELDS) >= names(
        chat.ChatCompletionSystemMessageParam, chat.ChatCompletionDeveloperMessageParam,
        chat.ChatCompletionUserMessageParam,
        chat.ChatCompletionAssistantMessageParam, chat.ChatCompletionToolMessageParam,
        chat.ChatCompletionMessage,
        chat.ParsedChatCompletionMessage,
    )  # fmt: skip
    assert all_of(PART_FIELDS) >= names(chat.ChatCompletionContentPartTextParam)
    from openai.types.responses import response_input_item_param as items

    assert all_of(ITEM_FIELDS["message"]) >= names(
        responses.EasyInputMessageParam, items.Message, responses.ResponseOutputMessageParam,
        responses.ResponseOutputMessage, responses.ParsedResponseOutputMessage,
    )  # fmt: skip
    assert all_of(ITEM_FIELDS["function_call"]) >= names(
        responses.ResponseFunctionToolCallParam, responses.ResponseFunctionToolCall,
        responses.ParsedResponseFunctionToolCall
    )  # fmt: skip
    assert all_of(ITEM_FIELDS["function_call_output"]) >= names(items.FunctionCallOutput)
    assert all_of(ITEM_PART_FIELDS) >= names(
        responses.ResponseInputTextParam, responses.ResponseOutputTextParam,
        responses.ResponseInputTextContentParam,
        responses.ResponseOutputText, responses.ParsedResponseOutputText,
    )  # fmt: skip


def test_a_conversation_that_is_too_long_is_told_that(live: Any) -> None:
    with living(live.run, limits=Limits(max_chars=50), strict_fields=True) as found:
        error = found.ask(CHAT, {"messages": [{**ASK, "odd": 1}] * 5}).json()["error"]
        assert error["code"] == "text_too_long"


def test_unknown_fields_are_told_in_a_header_or_refused_if_the_service_is_strict(speaker, serving):
    body = {
        "prompt": "a",
        "max_tokens": 1,
        "temperatur": 0.1,
        "user": "x\r\ny",
        "frequency_penalty": 0,
        "logit_bias": None,
        "best_of": 1,
    }
    answer = speaker.ask("/v1/completions", body)
    assert answer.status_code == 200
    assert (
        answer.headers["x-warnings"]
        == "field 'temperatur' is ignored; did you mean 'temperature'?; field 'user' is ignored"
    )
    with serving(speaker.run, strict_fields=True) as strict:
        error = refused(strict.ask("/v1/completions", body))
        assert error["param"] == "temperatur" and "did you mean 'temperature'?" in error["message"]
