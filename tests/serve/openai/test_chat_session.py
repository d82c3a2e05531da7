"""A conversation is measured, rendered and tokenised once per request, and truncated to its newest turns."""

from collections import Counter

import pytest
from tests.chat.published_chats import LOOKALIKES
from tests.serve.conftest import get_error, serve_run, with_generation
from tests.serve.openai.chat_helpers import answer_text
from tests.serve.tool_call_helpers import build_tool_run

from polyhead.chat import apply_template
from polyhead.chat.base import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.limits import Limits

CHAT = "/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": "ein hund bellt ."},
    {"role": "assistant", "content": "a dog barks ."},
    {"role": "user", "content": "zwei hunde"},
]
TOOLS = [{"type": "function", "function": {"name": "bark", "parameters": {"properties": {}}}}]


@pytest.fixture(scope="module")
def chatml_client():
    with serve_run(build_tool_run("chatml", None)) as client:
        yield client


@pytest.fixture
def counts(chatml_client, monkeypatch):
    """How many messages are rendered, and how often text is rendered and tokenised."""
    format, encode, counts = chatml_client.service.chat.format, apply_template.encode_pieces, Counter[str]()
    render = format.render

    def count_render(messages, *args):
        counts[f"{len(messages)} messages rendered"] += 1
        return render(messages, *args)

    def count_encode(pieces, tokenizer):
        counts["tokenised"] += 1
        return encode(pieces, tokenizer)

    monkeypatch.setattr(format, "render", count_render)
    monkeypatch.setattr(apply_template, "encode_pieces", count_encode)
    return counts


RENDERED_ONCE = {"4 messages rendered": 1, "tokenised": 1}
ONCE_WITH_TOOLS = RENDERED_ONCE | {"1 messages rendered": 1}  # to measure the tools
SHORT = {"messages": MESSAGES, "max_tokens": 2}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate": False}, RENDERED_ONCE),
        ({"truncate": True}, RENDERED_ONCE),
        ({"tools": TOOLS, "truncate": True}, ONCE_WITH_TOOLS),
    ],
    ids=range(3),
)
def test_conversation_is_rendered_and_tokenised_once(chatml_client, counts, fields, expected):
    assert chatml_client.ask(CHAT, SHORT | fields).status_code == 200
    assert counts == expected
    counts.clear()
    session, messages = chatml_client.service.chat, parse_conversation(MESSAGES)
    history = session.history_within(messages, {"max_new_tokens": 3})
    assert history.messages == messages and counts == RENDERED_ONCE
    session.prepare_request(history, max_new_tokens=3)
    assert counts == RENDERED_ONCE


def test_long_conversation_is_rendered_once_per_length(chatml_client, counts):
    messages = [MESSAGES[0], *MESSAGES[1:3] * 150, MESSAGES[3]]
    for options in ({}, {"max_tokens": 5}):
        counts.clear()
        answer = chatml_client.ask(CHAT, {"messages": messages, "truncate": True, **options})
        assert answer.status_code == 200
        num_tokenised = counts.pop("tokenised")
        assert counts.pop(f"{len(messages)} messages rendered") == 1
        assert {*counts.values()} == {1} and num_tokenised == len(counts) + 1 <= 10


def test_truncate_drops_the_oldest_turns(chat_client):
    session = chat_client.run.chat_session()
    turns = [m for i in range(12) for m in ({"role": "user", "content": f"hund {i}"}, MESSAGES[2])]
    body = {"messages": [MESSAGES[0], *turns[:-1]], "temperature": 0, "max_tokens": 5}
    error = get_error(chat_client.ask(CHAT, body))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    answer = chat_client.ask(CHAT, {**body, "truncate": True}).json()
    messages = session.truncate_history(parse_conversation(body["messages"]), 195).messages
    assert messages[0].role == "system" and len(messages) < len(body["messages"])
    expected = answer_text(chat_client.run, messages, temperature=0, max_tokens=5)
    assert answer["choices"][0]["message"]["content"] == expected
    single = {"messages": [{"role": "user", "content": "dogs " * 300}], "truncate": True}
    assert get_error(chat_client.ask(CHAT, single))["code"] == "context_length_exceeded"
    endless = chat_client.ask(CHAT, {"messages": MESSAGES, "max_tokens": 1000, "truncate": True})
    n = len(session.encode_prompt(parse_conversation(MESSAGES)))
    warning = f"1000 output tokens were requested; at most {200 - n} can be generated"
    assert endless.headers["x-warnings"] == warning and endless.json()["usage"]["prompt_tokens"] == n


@pytest.mark.parametrize("words", [1, 4, 7])
def test_truncate_leaves_room_for_the_default_length(chat_client, words):
    """For 15 of 200 tokens."""
    run, session = chat_client.run, chat_client.run.chat_session()
    turns = [{"role": "user", "content": "hund " * words}, MESSAGES[2]] * 40
    messages = [MESSAGES[0], *turns[:-1]]
    answer = chat_client.ask(CHAT, {"messages": messages, "temperature": 0, "truncate": True}).json()
    assert run.generation.max_new_tokens == 15
    expected = session.truncate_history(parse_conversation(messages), 200 - 15).messages
    text = answer_text(run, expected, temperature=0, max_tokens=15)
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["prompt_tokens"] == len(session.encode_prompt(expected))


def test_model_without_a_chat_format_names_alternatives(clients, chat_client):
    alternatives = {"decoder": "--chat NAME", "encoder": "embeddings", "encoder-decoder": "translations"}
    for kind, alternative in alternatives.items():
        error = get_error(clients[kind].ask(CHAT, {"messages": MESSAGES}))
        assert error["code"] == "model_not_chat" and alternative in error["message"]
        (card,) = clients[kind].ask("/v1/models").json()["data"]
        assert "chat/completions" not in card["polyhead"]["tasks"]
    (card,) = chat_client.ask("/v1/models").json()["data"]
    assert "chat/completions" in card["polyhead"]["tasks"]


def test_checkpoint_template_calls_tools_and_reads_results():
    run = with_generation(build_tool_run("chatml", True), chat=Choice("jinja", template=LOOKALIKES["hermes"]))
    question = {"role": "user", "content": "x <|im_end|>"}
    body = {"tools": TOOLS, "max_tokens": 80, "seed": 1}
    with serve_run(run, limits=Limits(max_chars=4000)) as client:
        answer = client.ask(CHAT, {**body, "messages": [question], "tool_choice": "required"}).json()
        (choice,) = answer["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "bark"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        messages = [question, choice["message"], result]
        usage = client.ask(CHAT, {**body, "messages": messages}).json()["usage"]
        messages[1] = {"role": "assistant", "tool_calls": [call]}
        tools = build_tool_choice(TOOLS)
        prompt = client.service.chat.encode_prompt(parse_conversation(messages), tools)
        assert usage["prompt_tokens"] == len(prompt)
