"""Calls of functions over HTTP, whole and as they come: what OpenAI's client sends and gets, whatever the
model says.
"""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from tests.serve.conftest import living
from tests.serve.tool_calls import TOOLS, make, written
from tests.serve.tool_calls import live as live
from tests.serve.tool_calls import says as says

from polyhead import Choice
from polyhead.chat.tools import build_tool_choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation

PATH = "/v1/chat/completions"
NOW = {"type": "function", "function": {"name": "now"}}
ASK = [{"role": "user", "content": "hunde"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome", "days": 2}}\n</tool_call>'
CALLED = {"name": "weather", "arguments": '{"place": "Rome", "days": 2}'}


def test_openais_client_calls_and_goes_on(live: Any, says: Any) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    talk: list[Any] = [{"role": "system", "content": "dogs"}, *ASK]
    says(written(live, CALL))
    answer = client.chat.completions.create(
        model="tiny", messages=talk, tools=TOOLS, tool_choice="auto"
    ).choices[0]
    (call,) = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"place": "Rome", "days": 2},
    )
    talk += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "snow <|im_end|>"}]
    says("a dog barks .")
    whole = client.chat.completions.create(model="tiny", messages=talk, tools=TOOLS)
    assert whole.choices[0].message.content == "a dog barks ." and not whole.choices[0].message.tool_calls
    plain = [
        one if isinstance(one, dict) else one.model_dump(include={"role", "content", "tool_calls"})
        for one in talk
    ]
    prompt = live.service.chat.encode_prompt(parse_conversation(plain), build_tool_choice(TOOLS))
    assert whole.usage.prompt_tokens == len(prompt)
    plain[-1] = plain[-1] | {"content": "snow"}
    special = set(live.run.tokenizer.special_ids)
    honest = live.service.chat.encode_prompt(parse_conversation(plain), build_tool_choice(TOOLS))
    assert [i for i in prompt if i in special] == [i for i in honest if i in special]
    says(written(live, CALL))
    with client.chat.completions.stream(model="tiny", messages=talk, tools=TOOLS) as stream:
        (last,) = stream.get_final_completion().choices
    assert last.finish_reason == "tool_calls" and last.message.tool_calls[0].function.name == "weather"
    assert json.loads(last.message.tool_calls[0].function.arguments) == {"place": "Rome", "days": 2}


def test_the_run_calls_as_its_service_does(live: Any, says: Any) -> None:
    talker = live.run.chat_session()
    says(written(live, CALL))
    answer = talker.reply(ASK, tools=TOOLS)
    assert (answer.role, answer.content, [call.name for call in answer.tool_calls]) == (
        "assistant",
        "",
        ["weather"],
    )
    says("snow")
    done = {"role": "tool", "content": "snow", "tool_call_id": answer.tool_calls[0].id}
    assert talker.reply([*ASK, answer, done], tools=TOOLS).content == "snow"
    says(written(live, CALL))
    assert live.run.chat(ASK, tools=TOOLS) == written(live, CALL)
    says(written(live, CALL))
    assert talker.reply(ASK).tool_calls == ()


def test_a_run_is_held_to_a_call_as_its_service_is(live: Any) -> None:
    talker, wishes = live.run.chat_session(), {"seed": 4, "max_new_tokens": 300}
    for must in ("required", NOW):
        answer = talker.reply(ASK, tools=TOOLS, tool_choice=must, **wishes)
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": must, "seed": 4, "max_tokens": 300}
        message = live.ask(PATH, body).json()["choices"][0]["message"]
        told = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", [])
        ]
        assert [(call.name, call.arguments) for call in answer.tool_calls] == told


def test_a_tool_that_no_answer_can_be_held_to_is_named(live: Any) -> None:
    tools = [*TOOLS, {"type": "function", "function": {"name": "f", "parameters": {"required": "x"}}}]
    with pytest.raises(UserError, match="tools: cannot be used as a grammar: f: failed to compile"):
        live.run.chat_session().reply(ASK, tools=tools, tool_choice="required")


@pytest.mark.parametrize("way", [{"seed": 4}, {"beam_size": 2}], ids=str)
def test_a_call_that_must_be_begins_with_its_mark_where_that_is_a_token(
    live: Any, way: dict[str, int]
) -> None:
    talker, tools = live.service.chat, build_tool_choice(TOOLS, NOW, False)
    asked = talker.prepare_request(parse_conversation(ASK), tools, max_new_tokens=60, **way)
    stream = live.run.engine().start_request(asked)
    stream.collect_texts()
    mark = talker.tool_syntax.start_marker
    if mark and mark in live.run.tokenizer.ids_to_tokens(range(live.run.tokenizer.vocab_size)):
        assert stream.tokens[0][0] == live.run.tokenizer.token_to_id(mark)


RESULT = {"role": "tool", "tool_call_id": "call00one", "content": "snow"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call00one", "type": "function", "function": CALLED}],
}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"tools": 7}, "tools", "tools: 7 is not a list of tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "tools: tool 0 has the name null, "
            "expected 1 to 64 letters"),
        ({"tools": [NOW, NOW]}, "tools", "tool 1 has the same name as tool 0: 'now'"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools",
            "of the type 'array', expected 'object'"),
        ({"tools": [{"function": {"name": "f", "parameters": {"not": {}}}}], "tool_choice": "required"},
            "tools", "tools: cannot be used as a grammar: "),
        ({"tools": [*TOOLS, {"function": {"name": "f",
            "parameters": {"properties": {"x": {"type": "strng"}}}}}], "tool_choice": "required"}, "tools",
                "cannot be used as a grammar: f: failed to compile JSON schema: Invalid type: strng"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "wether"}}}, "tool_choice",
            "unknown tool 'wether'; known: weather, now; did you mean 'weather'"),
        ({"tools": TOOLS, "tool_choice": "required", "stop": ["a"]}, "stop", "ends with the call: remove it"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "tool_choice: 'any' is not a tool_choice, "
            "expected auto, none, required"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice: 'required' requires a call, but there "
            "are no tools"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice", "remove response_format"),
        ({"tools": TOOLS, "tool_choice": NOW, "structured_outputs": {"regex": "a"}}, "tool_choice",
            "remove structured_outputs"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", ""),
        ({"messages": [*ASK, RESULT]}, "messages", "message 1 has the role 'tool', but no earlier message "
            "calls a function"),
        ({"messages": [*ASK, CALLS, RESULT | {"tool_call_id": "two"}]}, "messages", "message 2 answers the "
            "call 'two'; earlier calls: 'call00one'"),
        ({"messages": [*ASK, CALLS, RESULT | {"tool_call_id": 2}]}, "messages", "message 2 has the "
            "tool_call_id 2, expected a string"),
        ({"messages": [*ASK, CALLS]}, "messages", "it must have the role 'user'"),
        ({"tools": [{"function": {"name": "f", "description": "x" * 3000}}]}, "tools",
            "the conversation with its tools has a text of 30"),
        ({"tools": TOOLS, "messages": [{"role": "user", "content": "x" * 3000}]}, "messages",
            "messages has a text of"),
        ({"tools": [{"function": {"name": "f", "parameters": json.loads('{"x":' * 70 + "1" + "}" * 70)}}]},
            "tools", "tool 0 (f) is nested more than 64 levels deep"),
        ({"messages": [*ASK, {**CALLS, "tool_calls": [{"function": {"name": "f",
            "arguments": json.dumps({"x": "y" * 3000})}}]}, RESULT]}, "messages", "the maximum is 2000"),
    ],
    ids=lambda one: repr(one)[:60],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_by_name(
    live: Any, body: dict[str, Any], param: str, said: str
) -> None:
    error = live.ask(PATH, {"messages": ASK, **body}).json()["error"]
    assert error["param"] == param and said in error["message"] and "\n" not in error["message"], error
    assert live.ask(PATH, {"messages": [*ASK, CALLS, RESULT], "max_tokens": 1}).status_code == 200


def test_tools_count_as_the_model_reads_them(live: Any) -> None:
    """Llama reads each number of such a list in a line of its own, behind many blanks."""
    given: Any = [1] * 20
    for _ in range(30):
        given = [given]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"default": given}}}]
    response = live.ask(PATH, {"messages": ASK, "tools": tools, "max_tokens": 1})
    if live.service.chat.choice.name == "llama3":
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("tools", "text_too_long")
        assert re.fullmatch(
            r"tools: in the model's format .* have \d{4,5} characters; the maximum is 2000", error["message"]
        )
    else:
        assert response.status_code == 200


def test_a_style_of_mistral_without_tools_says_so_of_them() -> None:
    run = make("mistral", True)
    run.generation = run.generation.model_copy(update={"chat": Choice("mistral", style="v1")})
    with living(run) as found:
        error = found.ask(PATH, {"messages": ASK, "tools": TOOLS}).json()["error"]
        assert error["param"] == "tools" and "does not support tools in the style 'v1'" in error["message"]


def test_the_description_says_what_may_be_sent(live: Any) -> None:
    fields = live.ask("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    assert {"tools", "tool_choice", "parallel_tool_calls"} <= fields.keys()
    roles = fields["messages"]["items"]["properties"]["role"]["enum"]
    assert set(roles) == {"system", "developer", "user", "assistant", "tool"}
    assert (
        live.ask(
            PATH,
            {
                "messages": ASK,
                "tools": None,
                "tool_choice": None,
                "parallel_tool_calls": None,
                "max_tokens": 1,
            },
        ).status_code
        == 200
    )
