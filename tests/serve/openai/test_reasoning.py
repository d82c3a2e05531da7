"""Reasoning over HTTP: split from answers and streams, read in conversations, or disabled."""

import pytest
from tests.serve.conftest import get_error, serve_run
from tests.serve.tool_call_helpers import build_tool_run

from polyhead.chat.base import Message

pytest.importorskip("llguidance")
CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "zwei hunde"}]
OUTPUT = "<think>\na dog barks .\n</think>\n\ntwo dogs"
THINKING = {"structured_outputs": {"choice": [OUTPUT]}, "max_tokens": 200, "seed": 1}


@pytest.fixture(scope="module")
def thinking_client():
    with serve_run(build_tool_run("chatml", None, thinks=True)) as client:
        yield client


def test_chat_message_has_its_reasoning_in_a_field(thinking_client):
    body = {"messages": QUESTION, **THINKING}
    (choice,) = thinking_client.ask(CHAT, body).json()["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("a dog barks .", "two dogs")
    assert message["reasoning_content"] == message["reasoning"] and choice["finish_reason"] == "stop"
    deltas = [event["choices"][0]["delta"] for event in thinking_client.stream(CHAT, body)]
    for name in ("reasoning", "reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    assert deltas[0]["role"] == "assistant" and all("role" not in delta for delta in deltas[1:])
    (choice,) = thinking_client.ask(CHAT, body | {"max_tokens": 14}).json()["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    answer = thinking_client.ask(CHAT, body | {"structured_outputs": {"choice": ["dogs"]}})
    (choice,) = answer.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "dogs", "refusal": None}


def get_prompt(client, monkeypatch, **body):
    """The prompt tokens that a request gives the engine."""
    engine, prompts = client.service.engine, list[list[int]]()
    assert engine is not None
    start = engine.start_request
    with monkeypatch.context() as patch:
        patch.setattr(engine, "start_request", lambda r: prompts.append(r.prompt) or start(r))
        answer = client.ask(CHAT, {"max_tokens": 1, "seed": 1, **body})
    assert answer.status_code == 200, answer.text
    return prompts[0]


def test_enable_thinking_and_reasoning_of_messages(thinking_client, monkeypatch):
    t = thinking_client.run.tokenizer
    im_start, im_end = t.token_to_id("<|im_start|>"), t.token_to_id("<|im_end|>")

    def encode(*messages, end=""):
        """The conversation written out by hand."""
        ids = list[int]()
        for message in messages:
            text = t.encode([f"{message.role}\n{message.content}"])[0]
            ids += [im_start, *text, im_end, *t.encode(["\n"])[0]]
        return [*ids, im_start, *t.encode([f"assistant\n{end}"])[0]]

    question = Message("user", "zwei hunde")
    for value, end in ((None, ""), (True, ""), (False, "<think>\n\n</think>\n\n")):
        fields = {} if value is None else {"chat_template_kwargs": {"enable_thinking": value}}
        prompt = get_prompt(thinking_client, monkeypatch, messages=QUESTION, **fields)
        assert prompt == encode(question, end=end)
    thinking_off = {"chat_template_kwargs": {"enable_thinking": False}}
    body = {"messages": QUESTION, **THINKING, **thinking_off}
    (choice,) = thinking_client.ask(CHAT, body).json()["choices"]
    assert choice["message"]["content"] == OUTPUT and "reasoning" not in choice["message"]
    for name in ("reasoning", "reasoning_content"):
        messages = [*QUESTION, {"role": "assistant", "content": "dogs", name: "ein hund"}, *QUESTION]
        expected = encode(question, Message("assistant", "dogs"), question)  # earlier reasoning is dropped
        assert get_prompt(thinking_client, monkeypatch, messages=messages) == expected
    body = {"messages": QUESTION, "chat_template_kwargs": {"thinking": True}}
    error = get_error(thinking_client.ask(CHAT, body))
    assert error["param"] == "chat_template_kwargs" and "thinking" in error["message"]


def test_format_without_reasoning_cannot_disable_it(chat_client):
    body = {"messages": QUESTION, "max_tokens": 1}
    for value, status in ((True, 200), (None, 200), (False, 400)):
        answer = chat_client.ask(CHAT, body | {"chat_template_kwargs": {"enable_thinking": value}})
        assert answer.status_code == status
    assert get_error(answer)["param"] == "chat_template_kwargs"
    assert "reasoning" not in chat_client.ask(CHAT, body).json()["choices"][0]["message"]
