"""A conversation is measured, rendered and tokenised once a request, whatever else is asked of it."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest
from tests.chat.published_chats import LOOKALIKES
from tests.serve.conftest import living
from tests.serve.openai.chat_completions_helpers import TALK as CHAT_COMPLETIONS_TALK
from tests.serve.openai.chat_completions_helpers import live as brief
from tests.serve.openai.chat_completions_helpers import wanted
from tests.serve.tool_calls import make as make_tool_run

from polyhead.chat.tools import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.http.limits import Limits

__all__ = ["brief"]

from polyhead.chat import apply_template

TALK = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": "ein hund bellt ."},
    {"role": "assistant", "content": "a dog barks ."},
    {"role": "user", "content": "zwei hunde"},
]
TOOLS = [{"type": "function", "function": {"name": "bark", "parameters": {"properties": {}}}}]
RESPONSE_TOOLS = [{"type": "function", **TOOLS[0]["function"]}]
_shared, _tools = (
    runpy.run_path(str(Path(__file__).parents[1] / name)) for name in ("conftest.py", "test_tools.py")
)


@pytest.fixture(scope="module")
def live():
    with _shared["living"](_tools["make"]("chatml", None)) as found:
        yield found


@pytest.fixture
def counts(live, monkeypatch):
    """How many messages are rendered, and how often text is rendered and tokenised."""
    format, encode, found = live.service.chat.format, apply_template.encode_pieces, Counter()
    render = format.render

    def counted_render(messages, *args):
        found[f"{len(messages)} messages rendered"] += 1
        return render(messages, *args)

    def counted_encode(pieces, tokenizer):
        found["tokenised"] += 1
        return encode(pieces, tokenizer)

    monkeypatch.setattr(format, "render", counted_render)
    monkeypatch.setattr(apply_template, "encode_pieces", counted_encode)
    return found


@pytest.mark.parametrize("truncate", [False, True])
def test_a_conversation_is_rendered_and_tokenised_once(live, counts, truncate):
    body = {"messages": TALK, "max_tokens": 2, "truncate": truncate}
    assert live.ask("/v1/chat/completions", body).status_code == 200
    assert counts == {"4 messages rendered": 1, "tokenised": 1}


@pytest.mark.parametrize("truncation", ["disabled", "auto"])
def test_so_is_one_in_items_with_instructions(live, counts, truncation):
    body = {"input": TALK[1:], "instructions": "two dogs", "max_output_tokens": 2, "truncation": truncation}
    assert live.ask("/v1/responses", body).status_code == 200
    assert counts == {"4 messages rendered": 1, "tokenised": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TALK, "tools": TOOLS, "truncate": True, "max_tokens": 2}),
        (
            "/v1/responses",
            {"input": TALK, "tools": RESPONSE_TOOLS, "truncation": "auto", "max_output_tokens": 2},
        ),
    ],
)
def test_tools_are_rendered_alone_to_be_measured_and_tokenised_once(live, counts, path, body):
    assert live.ask(path, body).status_code == 200
    assert counts == {"1 messages rendered": 1, "4 messages rendered": 1, "tokenised": 1}


def test_of_a_long_conversation_no_part_is_rendered_twice(live, counts):
    talk = [TALK[0], *[one for _ in range(150) for one in TALK[1:3]], TALK[3]]
    for wish in ({}, {"max_tokens": 5}):
        counts.clear()
        answer = live.ask("/v1/chat/completions", {"messages": talk, "truncate": True, **wish})
        assert answer.status_code == 200
        tokenised = counts.pop("tokenised")
        assert counts.pop(f"{len(talk)} messages rendered") == 1
        assert {*counts.values()} == {1} and tokenised == len(counts) + 1 <= 10


def test_an_answer_of_the_run_renders_it_once_too(live, counts):
    session = live.service.chat
    prompt = session.history_within(parse_conversation(TALK), {"max_new_tokens": 3})
    assert prompt.messages == parse_conversation(TALK)
    assert counts == {"4 messages rendered": 1, "tokenised": 1}
    engine_request = session.prepare_request(prompt, max_new_tokens=3)
    assert counts == {"4 messages rendered": 1, "tokenised": 1}
    counts.clear()
    assert session.prepare_request(parse_conversation(TALK), max_new_tokens=3).prompt == engine_request.prompt
    assert counts == {"4 messages rendered": 1, "tokenised": 1}


PATH = "/v1/chat/completions"


def test_a_long_conversation_loses_its_beginning_if_that_is_wished(brief):
    live = brief
    talk = [
        CHAT_COMPLETIONS_TALK[0],
        *[
            one
            for i in range(12)
            for one in ({"role": "user", "content": f"hund {i}"}, CHAT_COMPLETIONS_TALK[2])
        ][:-1],
    ]
    body = {"messages": talk, "temperature": 0, "max_tokens": 5}
    refused = live.ask(PATH, body).json()["error"]
    assert refused["code"] == "context_length_exceeded" and refused["param"] == "messages"
    answer = live.ask(PATH, {**body, "truncate": True}).json()
    kept = live.run.chat_session().truncate_history(parse_conversation(talk), 196).messages
    assert kept[0].role == "system" and len(kept) < len(talk)
    (text,) = wanted(live.run, kept, temperature=0, max_tokens=5).collect_texts()
    assert answer["choices"][0]["message"]["content"] == text
    alone = {"messages": [{"role": "user", "content": "dogs " * 300}], "truncate": True}
    assert live.ask(PATH, alone).json()["error"]["code"] == "context_length_exceeded"
    endless = live.ask(PATH, {"messages": CHAT_COMPLETIONS_TALK, "max_tokens": 1000, "truncate": True})
    read = len(live.run.chat_session().encode_prompt(parse_conversation(CHAT_COMPLETIONS_TALK)))
    told = f"1000 output tokens were requested; at most {201 - read} can be generated"
    assert endless.headers["x-warnings"] == told and endless.json()["usage"]["prompt_tokens"] == read


@pytest.mark.parametrize("words", range(1, 9))
def test_where_no_length_is_wished_a_cut_conversation_leaves_room_for_the_usual_one(brief, words):
    """However the questions are cut, there is room for 15 of 200 tokens."""
    live = brief
    long = {"role": "user", "content": "hund " * words}
    talk = [
        CHAT_COMPLETIONS_TALK[0],
        *[one for _ in range(40) for one in (long, CHAT_COMPLETIONS_TALK[2])][:-1],
    ]
    answer = live.ask(PATH, {"messages": talk, "temperature": 0, "truncate": True}).json()
    assert live.run.generation.max_new_tokens == 15
    kept = live.run.chat_session().truncate_history(parse_conversation(talk), 201 - 15).messages
    (text,) = wanted(live.run, kept, temperature=0, max_tokens=15).collect_texts()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["prompt_tokens"] == len(live.run.chat_session().encode_prompt(kept))


def test_runs_without_a_format_say_what_to_do(services, live):
    for kind, said in (
        ("decoder", "--chat NAME"),
        ("encoder", "/v1/embeddings"),
        ("encoder-decoder", "/v1/translations"),
    ):
        error = services[kind].ask(PATH, {"messages": CHAT_COMPLETIONS_TALK}).json()["error"]
        assert error["code"] == "model_not_chat" and said in error["message"]
        assert (
            "chat/completions" not in services[kind].ask("/v1/models").json()["data"][0]["polyhead"]["tasks"]
        )
    assert "chat/completions" in live.ask("/v1/models").json()["data"][0]["polyhead"]["tasks"]


def test_a_template_of_a_checkpoint_serves_tools_and_goes_on_from_its_calls():
    run = make_tool_run("chatml", True)
    template = Choice("jinja", template=LOOKALIKES["hermes"])
    run.generation = run.generation.model_copy(update={"chat": template})
    asked = {"role": "user", "content": "x <|im_end|>"}
    body = {"tools": TOOLS, "max_tokens": 80, "seed": 1}
    with living(run, limits=Limits(max_chars=4000)) as live:
        answer = live.ask("/v1/chat/completions", {**body, "messages": [asked], "tool_choice": "required"})
        (choice,) = answer.json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "bark"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        messages = [asked, choice["message"], result]
        usage = live.ask("/v1/chat/completions", {**body, "messages": messages}).json()["usage"]
        part = live.service.chat
        written = [asked, {"role": "assistant", "tool_calls": [call]}, result]
        prompt = part.encode_prompt(parse_conversation(written), build_tool_choice(TOOLS))
        assert usage["prompt_tokens"] == len(prompt)
