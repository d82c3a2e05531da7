"""Reasoning of models that write some: kept apart in answers and streams, read in conversations, or off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.conftest import Live, living, make
from tests.serve.tool_calls import make as make_chat

from polyhead import Choice
from polyhead.chat.base import Message
from polyhead.run.run import Run

pytest.importorskip("llguidance")
CHAT, PATH = "/v1/chat/completions", "/v1/responses"
ASK = [{"role": "user", "content": "zwei hunde"}]
OUTPUT = "<think>\na dog barks .\n</think>\n\ntwo dogs"
ALL = {"structured_outputs": {"choice": [OUTPUT]}, "max_tokens": 200, "seed": 1}


@pytest.fixture(scope="module")
def run() -> Run:
    made = make_chat("chatml", None)
    settings = made.generation.model_copy(update={"chat": Choice("chatml", thinks=True)})
    return Run(made.model, made.tokenizer, settings)


@pytest.fixture(scope="module")
def live(run: Run) -> Iterator[Live]:
    with living(run) as found:
        yield found


def test_an_answer_has_its_reasoning_apart(live: Live) -> None:
    (choice,) = live.ask(CHAT, {"messages": ASK, **ALL}).json()["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("a dog barks .", "two dogs")
    assert message["reasoning_content"] == message["reasoning"] and choice["finish_reason"] == "stop"
    events = live.events(CHAT, {"messages": ASK, **ALL})
    deltas = [event["choices"][0]["delta"] for event in events]
    for name, wanted in (("reasoning", "a dog barks ."), ("reasoning_content", "a dog barks ."), ("content",
        "two dogs")):  # fmt: skip
        assert "".join(delta.get(name) or "" for delta in deltas) == wanted
    assert deltas[0]["role"] == "assistant" and all("role" not in delta for delta in deltas[1:])
    cut = live.ask(CHAT, {"messages": ASK, **ALL, "max_tokens": 14}).json()["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["content"] is None
    plain = live.ask(CHAT, {"messages": ASK, **ALL, "structured_outputs": {"choice": ["dogs"]}}).json()
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "dogs", "refusal": None}


def test_a_response_has_its_reasoning_as_an_item(live: Live) -> None:
    body = {**ALL, "input": ASK, "max_output_tokens": 200, "include": ["message.output_text.logprobs"]}
    body.pop("max_tokens")
    answer = live.ask(PATH, body).json()
    reasoning, message = answer["output"]
    assert reasoning["type"] == "reasoning" and reasoning["status"] == "completed"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "a dog barks ."}]
    (part,) = message["content"]
    assert part["text"] == "two dogs"
    named = b"".join(bytes(token["bytes"]) for token in part["logprobs"] if token["token"] != "</s>")
    assert named.decode().startswith("two dogs")  # the tokens of the text, not those before it
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    lines = live.ask(PATH, body | {"stream": True}).text.split("\n\n")
    kinds = [line.split('"type":"')[1].split('"')[0] for line in lines if '"type":"response.' in line]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.reasoning_text.done")
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    again = live.ask(PATH, {**body, "input": [*ASK, *answer["output"], *ASK]})
    assert again.status_code == 200 and "x-warnings" not in again.headers
    cut = live.ask(PATH, body | {"max_output_tokens": 16}).json()  # within the reasoning
    assert cut["status"] == "incomplete" and [item["status"] for item in cut["output"]] == ["incomplete"]


def prompt_of(live: Live, path: str, **body: Any) -> list[int]:
    """The prompt tokens that a request gives the engine."""
    engine, seen = live.service.engine, list[list[int]]()
    assert engine is not None
    start = engine.start_request
    engine.start_request = lambda prepared: seen.append(prepared.prompt) or start(prepared)  # type: ignore
    try:
        answer = live.ask(path, {**body, "seed": 1})
        assert answer.status_code == 200, answer.text
    finally:
        del engine.start_request
    return seen[0]


def test_thinking_can_be_turned_off_and_thoughts_are_read(live: Live, run: Run) -> None:
    def encoded(*messages: Message, end: str = "") -> list[int]:
        """The conversation written out by hand."""
        t, ids = run.tokenizer, list[int]()
        for message in messages:
            ids += [t.token_to_id("<|im_start|>"), *t.encode([f"{message.role}\n{message.content}"])[0]]
            ids += [t.token_to_id("<|im_end|>"), *t.encode(["\n"])[0]]
        return [*ids, t.token_to_id("<|im_start|>"), *t.encode([f"assistant\n{end}"])[0]]

    ask = Message("user", "zwei hunde")
    for setting, end in ((None, ""), (True, ""), (False, "<think>\n\n</think>\n\n")):
        kwargs = {} if setting is None else {"chat_template_kwargs": {"enable_thinking": setting}}
        assert prompt_of(live, CHAT, messages=ASK, max_tokens=1, **kwargs) == encoded(ask, end=end)
    off = {"chat_template_kwargs": {"enable_thinking": False}, "structured_outputs": {"choice": [OUTPUT]}}
    message = live.ask(CHAT, {"messages": ASK, **ALL, **off}).json()["choices"][0]["message"]
    assert message["content"] == OUTPUT and "reasoning" not in message
    for name in ("reasoning", "reasoning_content"):
        talk = [*ASK, {"role": "assistant", "content": "dogs", name: "ein hund"}, *ASK]
        before = Message("assistant", "dogs")  # earlier thoughts are left out, as the template does
        assert prompt_of(live, CHAT, messages=talk, max_tokens=1) == encoded(ask, before, ask)
    error = live.ask(CHAT, {"messages": ASK, "chat_template_kwargs": {"thinking": True}}).json()["error"]
    assert error["param"] == "chat_template_kwargs" and "thinking" in error["message"]


def test_a_format_without_reasoning_cannot_turn_it_off() -> None:
    made = make("decoder", max_len=100)
    settings = made.generation.model_copy(update={"chat": Choice("plain")})
    with living(Run(made.model, made.tokenizer, settings)) as live:
        body = {"messages": ASK, "max_tokens": 1}
        for value, code in ((True, 200), (None, 200), (False, 400)):
            answer = live.ask(CHAT, body | {"chat_template_kwargs": {"enable_thinking": value}})
            assert answer.status_code == code
        assert answer.json()["error"]["param"] == "chat_template_kwargs"
        assert "reasoning" not in live.ask(CHAT, body).json()["choices"][0]["message"]
