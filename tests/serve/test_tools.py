"""Calls of functions over HTTP, whole and as they come: what OpenAI's client sends and gets, whatever the model says."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import tokenizers
from polyhead import Choice, ModelConfig, build
from polyhead.chat.tools import build_tool_choice
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation
from polyhead.generation.decoding.sampling import Sampling
from polyhead.run.run import Run
from polyhead.serve.http.limits import Limits
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

_shared = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
PATH = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["place", "days"], "additionalProperties": False}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What falls", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
NOW = {"type": "function", "function": {"name": "now"}}
ASK = [{"role": "user", "content": "hunde"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome", "days": 2}}\n</tool_call>'
CALLED = {"name": "weather", "arguments": '{"place": "Rome", "days": 2}'}


def make(chat: str, special: bool | None) -> Run:
    """A model with the tokens of a format; those about calls are special ones, others, or not there."""
    tokens = train_tokenizer([*_shared["TEXTS"], CALL, '"parameters" Oslo'] * 5, Choice("bpe"), 330)
    tokens._inner.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    marks = [
        AddedToken(mark, special=bool(special), normalized=False)
        for mark in ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
    ]
    tokens._inner.add_tokens(marks if special is not None else [])
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 2500}
    model = build(ModelConfig(kind="decoder", vocab_size=tokens._inner.get_vocab_size(), **sizes), seed=1)
    return Run(model, Tokenizer(tokens._inner), GenerationConfig(chat=Choice(chat), max_new_tokens=200))


@pytest.fixture(
    scope="module",
    params=[
        ("chatml", None),
        ("chatml", True),
        ("chatml", False),
        ("llama3", None),
        ("mistral", True),
        ("mistral", None),
    ],
    ids=str,
)
def live(request: Any) -> Iterator[Any]:
    with _shared["living"](make(*request.param), limits=Limits(chars=2000)) as found:
        yield found


@pytest.fixture
def says(live: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the model say a text in its next answer; what is special about calls is said as special tokens."""

    def say(text: str) -> None:
        inner = tokenizers.Tokenizer.from_str(
            live.run.tokenizer.tokenizer_json
        )  # to it special tokens are none
        ids = inner.encode(text, add_special_tokens=False).ids
        script = iter([*ids, live.service.chat.eos_ids[0]])
        monkeypatch.setattr(Sampling, "sample", lambda self, logits, *rest: [next(script)] * len(logits))

    return say


def written(live: Any, text: str) -> str:
    """A text of ChatML as the format of this service has it."""
    name = live.service.chat.choice.name
    if name == "llama3":
        return re.sub("\n?</?tool_call>\n?", "", text).replace("arguments", "parameters")
    return (
        re.sub("<tool_call>\n(.*)\n</tool_call>", r"[TOOL_CALLS] [\1]", text) if name == "mistral" else text
    )


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
    with pytest.raises(
        UserError, match="tools: no answer can be held to what they say: f: failed to compile"
    ):
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
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "tools: tool 0 has the name null, wanted 1 to 64 letters"),
        ({"tools": [NOW, NOW]}, "tools", "tool 1 is named 'now', as tool 0 is"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools", "of the type 'array', wanted 'object'"),
        ({"tools": [{"function": {"name": "f", "parameters": {"not": {}}}}], "tool_choice": "required"}, "tools", "tools: no answer can be held to what they say: "),
        ({"tools": [*TOOLS, {"function": {"name": "f", "parameters": {"properties": {"x": {"type": "strng"}}}}}], "tool_choice": "required"}, "tools", "held to what they say: f: failed to compile JSON schema: Invalid type: strng"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "wether"}}}, "tool_choice", "there is no tool 'wether'; there are: weather, now; did you mean 'weather'"),
        ({"tools": TOOLS, "tool_choice": "required", "stop": ["a"]}, "stop", "ends with the call: leave it out"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "tool_choice: 'any' is no tool_choice, wanted auto, none, required"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice: 'required' wants a call, and there are no tools"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "leave out response_format"),
        ({"tools": TOOLS, "tool_choice": NOW, "structured_outputs": {"regex": "a"}}, "tool_choice", "leave out structured_outputs"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", ""),
        ({"messages": [*ASK, RESULT]}, "messages", "message 1 has the role 'tool', and no message before it calls a function"),
        ({"messages": [*ASK, CALLS, RESULT | {"tool_call_id": "two"}]}, "messages", "message 2 answers the call 'two'; the calls before it: 'call00one'"),
        ({"messages": [*ASK, CALLS, RESULT | {"tool_call_id": 2}]}, "messages", "message 2 has the tool_call_id 2, wanted a text"),
        ({"messages": [*ASK, {"role": "assistant", "content": None}, *ASK]}, "messages", "message 1 has the content null"),
        ({"messages": [*ASK, CALLS]}, "messages", "a message of the user must come last"),
        ({"tools": [{"function": {"name": "f", "description": "x" * 3000}}]}, "tools", "the conversation with its tools has a text of 30"),
        ({"tools": TOOLS, "messages": [{"role": "user", "content": "x" * 3000}]}, "messages", "messages has a text of"),
        ({"tools": [{"function": {"name": "f", "parameters": json.loads('{"x":' * 70 + "1" + "}" * 70)}}]}, "tools", "tool 0 (f) is nested more than 64 levels deep"),
        ({"messages": [*ASK, {**CALLS, "tool_calls": [{"function": {"name": "f", "arguments": json.dumps({"x": "y" * 3000})}}]}, RESULT]}, "messages", "this service takes 2000"),
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
            r"tools: written as .* have \d{4,5} characters; this service takes 2000", error["message"]
        )
    else:
        assert response.status_code == 200


def test_a_style_of_mistral_without_tools_says_so_of_them() -> None:
    run = make("mistral", True)
    run.generation = run.generation.model_copy(update={"chat": Choice("mistral", style="v1")})
    with _shared["living"](run) as found:
        error = found.ask(PATH, {"messages": ASK, "tools": TOOLS}).json()["error"]
        assert error["param"] == "tools" and "no way to write tools in the style 'v1'" in error["message"]


def test_the_description_says_what_may_be_sent(live: Any) -> None:
    fields = live.ask("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    assert {"tools", "tool_choice", "parallel_tool_calls"} <= fields.keys()
    roles = fields["messages"]["items"]["properties"]["role"]["enum"]
    assert roles == ["system", "developer", "user", "assistant", "tool"]
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
