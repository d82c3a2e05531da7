"""Conversations over HTTP are those of the run, token by token, and log-probabilities those of a plain softmax."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import openai
import pytest
import torch
from tests.serve.conftest import named

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation
from polyhead.generation.text_output import TokenLogprobs
from polyhead.run.run import Run
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.http.limits import Limits
from polyhead.serve.openai.logprobs import format_chat_logprobs
from polyhead.serve.service import Service
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TALK = [
    {"role": "system", "content": "two dogs"},
    {"role": "user", "content": "ein hund </s> bellt . 犬"},
    {"role": "assistant", "content": "a dog barks ."},
    {"role": "user", "content": "zwei hunde"},
]
WAYS = [
    {"temperature": 0},
    {"seed": 3},
    {"n": 3, "seed": 4, "top_k": 20},
    {"n": 2, "beam_size": 4},
    {"max_tokens": 1},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"40": 2}},
]
PATH = "/v1/chat/completions"


_shared = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))


@pytest.fixture(scope="module")
def live():
    """A model that reads 200 tokens and converses."""
    made = _shared["make"]("decoder", max_len=200)
    settings = made.generation.model_copy(update={"chat": Choice("plain")})
    with _shared["living"](Run(made.model, made.tokenizer, settings)) as found:
        yield found


def wanted(run, talk, n=1, **way):
    names = {"max_tokens": "max_new_tokens"}
    talker = run.chat_session()
    changes = {names.get(name, name): value for name, value in way.items()}
    return run.engine().start_request(
        talker.prepare_request(parse_conversation(talk), n=n, **({"seed": 0} | changes))
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_answers_are_those_of_the_run(live, way):
    way = {"seed": 7} | way
    stream = wanted(live.run, TALK, **way)
    texts = stream.collect_texts()
    answer = live.ask(PATH, {"model": "tiny", "messages": TALK, **way}).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert [choice["message"] for choice in answer["choices"]] == [
        {"role": "assistant", "content": text, "refusal": None} for text in texts
    ]
    assert [choice["index"] for choice in answer["choices"]] == list(range(way.get("n", 1)))
    assert [choice["finish_reason"] for choice in answer["choices"]] == stream.finish_reasons
    assert answer["usage"]["prompt_tokens"] == len(
        live.run.chat_session().encode_prompt(parse_conversation(TALK))
    )
    events = live.events(PATH, {"messages": TALK, **way, "stream_options": {"include_usage": True}})
    said, roles = [""] * len(texts), [0] * len(texts)
    for event in events[:-1]:
        assert event["object"] == "chat.completion.chunk"
        (choice,) = event["choices"]
        said[choice["index"]] += choice["delta"]["content"]
        roles[choice["index"]] += choice["delta"].get("role") == "assistant"
    assert said == texts and roles == [1] * len(texts)
    assert events[-1]["choices"] == []
    details = {"prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]}  # read before by then
    assert events[-1]["usage"] == answer["usage"] | details


def test_contents_in_parts_and_the_developer_are_understood(live):
    parts = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "two "}, {"type": "text", "text": "dogs"}],
        },
        *TALK[1:],
    ]
    body = {"temperature": 0}
    assert (
        live.ask(PATH, {"messages": parts, **body}).json()["choices"]
        == live.ask(PATH, {"messages": TALK, **body}).json()["choices"]
    )


def test_openais_client_converses(live):
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    (text,) = wanted(live.run, TALK, seed=5, max_tokens=9).collect_texts()
    whole = client.chat.completions.create(
        model="tiny",
        messages=TALK,
        seed=5,
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=2,
        tool_choice="none",
    )
    assert whole.choices[0].message.content == text and whole.usage.completion_tokens <= 9
    assert [len(one.top_logprobs) for one in whole.choices[0].logprobs.content] == [
        2
    ] * whole.usage.completion_tokens
    said = ""
    for chunk in client.chat.completions.create(
        model="tiny", messages=TALK, seed=5, max_tokens=9, stream=True
    ):
        said += chunk.choices[0].delta.content or ""
    assert said == text and chunk.choices[0].finish_reason in ("stop", "length")
    with client.chat.completions.stream(model="tiny", messages=TALK, seed=5, max_tokens=9) as stream:
        if whole.choices[0].finish_reason == "stop":
            assert stream.get_final_completion().choices[0].message.content == text
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=[TALK[1], TALK[2]])
    assert refused.value.param == "messages" and "a message of the user must come last" in str(refused.value)


def test_a_field_that_is_null_is_as_one_that_is_not_there_but_for_whole_numbers(live):
    names = ("stop", "temperature", "top_p", "stream", "logprobs", "stream_options", "response_format")
    body = {"messages": TALK, "max_tokens": 5, "beam_size": 2}
    wanted = live.ask(PATH, body).json()
    for nothing in (dict.fromkeys(names), {"stop": []}):
        found = live.ask(PATH, body | nothing)
        assert found.status_code == 200, found.text
        assert found.json()["choices"] == wanted["choices"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"messages": []}, "messages", "not a list of messages"),
        ({"messages": "hello"}, "messages", "not a list of messages"),
        ({"messages": [1]}, "messages", "message 0 is 1"),
        ({"messages": [{"role": "user"}]}, "messages", "message 0 has the content null"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "role 'tool'"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages", "has the role 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "messages", "'image_url'; this model reads text alone"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages", "reads text alone"),
        ({"messages": [TALK[1], {"role": "assistant", "content": "", "tool_calls": [{}]}, TALK[3]]}, "messages", "call 0 of message 1 is {}, wanted an id and a function"),
        ({"messages": [TALK[1], TALK[2] | {"function_call": {"name": "f"}}, TALK[3]]}, "messages", "function_call, which is not supported"),
        ({"messages": TALK, "tools": [{"type": "function"}]}, "tools", "tool 0 is {'type': 'function'}, wanted"),
        ({"messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "has no way to write tools; those that have: chatml, llama3, mistral"),
        ({"messages": TALK, "top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"messages": TALK, "logprobs": True, "top_logprobs": 21}, "top_logprobs", ""),
        ({"messages": TALK, "logprobs": 3}, "logprobs", ""),
        ({"messages": TALK, "logprobs": True, "beam_size": 2}, "logprobs", "sampled text only"),
        ({"messages": TALK, "max_completion_tokens": 0}, "max_completion_tokens", ""),
        ({"messages": TALK, "max_completion_tokens": 5000}, "max_completion_tokens", "4096 at most"),
        ({"messages": [{"role": "user", "content": "x" * 40_000}]}, "messages", "40016 characters"),
        ({"messages": [{"role": "user", "content": "dogs " * 300}]}, "messages", "this model reads 200"),
        ({"messages": [{"role": "user", "content": "\\ud800"}]}, None, "surrogate"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_by_name(live, body, param, said):
    raw = json.dumps(body).replace("\\\\u", "\\u")
    answer = live.http.post(PATH, content=raw, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param, error
    assert said in error["message"] and "\n" not in error["message"]
    assert live.ask(PATH, {"messages": TALK, "temperature": 0}).status_code == 200


def test_a_long_conversation_loses_its_beginning_if_that_is_wished(live):
    talk = [
        TALK[0],
        *[one for i in range(12) for one in ({"role": "user", "content": f"hund {i}"}, TALK[2])][:-1],
    ]
    body = {"messages": talk, "temperature": 0, "max_tokens": 5}
    refused = live.ask(PATH, body).json()["error"]
    assert refused["code"] == "context_length_exceeded" and refused["param"] == "messages"
    answer = live.ask(PATH, {**body, "truncate": True}).json()
    kept = live.run.chat_session().truncate_history(parse_conversation(talk), 196)
    assert kept[0].role == "system" and len(kept) < len(talk)
    (text,) = wanted(live.run, kept, temperature=0, max_tokens=5).collect_texts()
    assert answer["choices"][0]["message"]["content"] == text
    alone = {"messages": [{"role": "user", "content": "dogs " * 300}], "truncate": True}
    assert live.ask(PATH, alone).json()["error"]["code"] == "context_length_exceeded"
    endless = live.ask(PATH, {"messages": TALK, "max_tokens": 1000, "truncate": True}).json()["error"]
    assert endless["code"] == "context_length_exceeded"
    assert "room for 0: say less at once, or ask for less than max_tokens=1000" in endless["message"]


@pytest.mark.parametrize("words", range(1, 9))
def test_where_no_length_is_wished_a_cut_conversation_leaves_room_for_the_usual_one(live, words):
    """However the questions are cut, there is room for 15 of 200 tokens."""
    long = {"role": "user", "content": "hund " * words}
    talk = [TALK[0], *[one for _ in range(40) for one in (long, TALK[2])][:-1]]
    answer = live.ask(PATH, {"messages": talk, "temperature": 0, "truncate": True}).json()
    assert live.run.generation.max_new_tokens == 15
    kept = live.run.chat_session().truncate_history(parse_conversation(talk), 201 - 15)
    (text,) = wanted(live.run, kept, temperature=0, max_tokens=15).collect_texts()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["prompt_tokens"] == len(live.run.chat_session().encode_prompt(kept))


def softmax(run, ids, tokens):
    """log p of every token at each place, by the whole model and a plain softmax."""
    with torch.inference_mode():
        logits = run.model(torch.tensor([[*ids, *tokens]]))[0]
    return torch.log(torch.softmax(logits.double(), -1))[len(ids) - 1 : -1]


@pytest.mark.acceptance("C10")
@pytest.mark.parametrize(
    "way", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 1, "temperature": 1e-38}], ids=str
)
def test_log_probabilities_are_those_of_a_plain_softmax(live, way):
    run = live.run
    ids = run._prompt_template.build_prompt(run.tokenizer.encode(["a dog"])[0])
    body = {"prompt": "a dog", "max_tokens": 6, **way}
    others = [{**body, "prompt": "zwei", "logprobs": 2, "seed": 9}, {**body, "n": 2}]
    text = live.ask("/v1/completions", {**body, "logprobs": 5}).text
    (choice,) = json.loads(text, parse_constant=lambda name: pytest.fail(name))["choices"]
    stream = run.engine().submit("a dog", max_new_tokens=6, **({"seed": 0} | way))
    stream.collect_texts()
    (tokens,) = stream.tokens
    log_probs = softmax(run, ids, tokens)
    told = choice["logprobs"]
    assert told["tokens"] == [named(run.tokenizer, token) for token in tokens]
    assert told["token_logprobs"] == pytest.approx(
        [float(p[t]) for p, t in zip(log_probs, tokens, strict=True)], abs=1e-4
    )
    for token, top, p in zip(tokens, told["top_logprobs"], log_probs, strict=True):
        best = p.topk(5)
        expected = {named(run.tokenizer, int(i)): float(v) for v, i in zip(*best, strict=True)} | {
            named(run.tokenizer, token): float(p[token])
        }
        assert top == pytest.approx(expected, abs=1e-4)
    (alone,) = live.ask("/v1/completions", {**body, "logprobs": 0}).json()["choices"]
    assert "top_logprobs" not in alone["logprobs"] and alone["text"] == choice["text"]
    for other in others:
        assert live.ask("/v1/completions", other).status_code == 200
    told = [
        event["choices"][0]["logprobs"] for event in live.events("/v1/completions", {**body, "logprobs": 5})
    ]
    streamed = [one for part in told for one in part["top_logprobs"]]
    assert [list(one) for one in streamed] == [list(one) for one in choice["logprobs"]["top_logprobs"]]
    assert [token for part in told for token in part["tokens"]] == choice["logprobs"]["tokens"]


def test_log_probabilities_of_an_answer(live):
    run, body = live.run, {"messages": TALK, "seed": 2, "max_tokens": 5, "logprobs": True, "top_logprobs": 20}
    (choice,) = live.ask(PATH, body).json()["choices"]
    stream = wanted(run, TALK, seed=2, max_tokens=5)
    stream.collect_texts()
    (tokens,) = stream.tokens
    log_probs = softmax(run, run.chat_session().encode_prompt(parse_conversation(TALK)), tokens)
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == [named(run.tokenizer, token) for token in tokens]
    for one, token, p in zip(content, tokens, log_probs, strict=True):
        assert one["logprob"] == pytest.approx(float(p[token]), abs=1e-4)
        for other, i in zip(one["top_logprobs"], p.topk(20).indices.tolist(), strict=True):
            assert [bytes(other["bytes"]).decode(errors="replace")] == run.tokenizer.decode([[i]])
        values = [other["logprob"] for other in one["top_logprobs"]]
        assert values == pytest.approx(p.topk(20).values.tolist(), abs=1e-4)
        assert one["top_logprobs"][0]["token"] == named(run.tokenizer, int(p.argmax()))
    said = b"".join(bytes(one["bytes"]) for one in content)
    whole = said.decode(errors="replace").rstrip(
        "\ufffd"
    )  # what ends inside a character is no part of the answer
    assert whole.strip() == choice["message"]["content"]
    events = live.events(PATH, body)
    told = [one for event in events for one in event["choices"][0]["logprobs"]["content"]]
    assert [one["token"] for one in told] == [one["token"] for one in content]
    (without,) = live.ask(PATH, {"messages": TALK, "seed": 2, "max_tokens": 5}).json()["choices"]
    assert without["logprobs"] is None and without["message"] == choice["message"]


def test_the_bytes_of_each_token_add_up_to_the_text(live):
    tokenizer = live.run.tokenizer
    (ids,) = tokenizer.encode(["zwei 犬 ü \U0001f415"])
    content = format_chat_logprobs(
        live.run, TokenLogprobs([*ids, tokenizer.eos_id], [-1.0] * (len(ids) + 1), [()] * (len(ids) + 1))
    )
    said = [bytes(one["bytes"]) for one in content["content"]]
    assert b"".join(said).decode() == "zwei 犬 ü \U0001f415" and said[-1] == b""
    assert b"\xf0" in said  # a part of a character is a byte, not the letter that it is shown as
    for name in ("char", "unigram"):
        other = train_tokenizer(["zwei 犬 dogs bark"] * 5, Choice(name), 120)
        (ids,) = other.encode(["dogs bark"])
        run = Run(live.run.model, other, live.run.generation)
        likely = TokenLogprobs([*ids, other.eos_id], [-1.0] * (len(ids) + 1), [()] * (len(ids) + 1))
        *said, end = [one["bytes"] for one in format_chat_logprobs(run, likely)["content"]]
        assert end == []
        assert b"".join(map(bytes, said)).decode().strip() == "dogs bark"


def test_nothing_is_ranked_for_those_who_do_not_ask(live, monkeypatch):
    from polyhead.generation.decoding import sampler

    asked = []
    true = sampler.get_top_logprobs
    monkeypatch.setattr(
        sampler,
        "get_top_logprobs",
        lambda log_probs, k: asked.append((len(log_probs), k)) or true(log_probs, k),
    )
    live.ask("/v1/completions", {"prompt": "dogs", "logprobs": 0, "max_tokens": 3})
    live.ask(PATH, {"messages": TALK, "logprobs": True, "max_tokens": 3})
    assert asked == []
    live.ask("/v1/completions", {"prompt": "dogs", "n": 2, "logprobs": 4, "max_tokens": 1})
    assert asked == [(2, 4)]


def test_runs_without_a_format_say_what_to_do(services, live):
    for kind, said in (
        ("decoder", "--chat NAME"),
        ("encoder", "/v1/embeddings"),
        ("encoder-decoder", "/v1/translations"),
    ):
        error = services[kind].ask(PATH, {"messages": TALK}).json()["error"]
        assert error["code"] == "model_not_chat" and said in error["message"]
        assert (
            "chat/completions" not in services[kind].ask("/v1/models").json()["data"][0]["polyhead"]["tasks"]
        )
    assert "chat/completions" in live.ask("/v1/models").json()["data"][0]["polyhead"]["tasks"]


def test_a_format_can_be_named_for_the_service(runs):
    given = (Limits(), ApiKeys())
    assert Service(runs["decoder"], "tiny", *given, chat=Choice("zephyr")).chat.choice == Choice("zephyr")
    with pytest.raises(UserError, match="needs the token"):
        Service(runs["decoder"], "tiny", *given, chat=Choice("chatml"))
    with pytest.raises(UserError, match="language models alone converse"):
        Service(runs["encoder"], "tiny", *given, chat=Choice("plain"))
    run = runs["decoder"]
    unfit = Run(run.model, run.tokenizer, run.generation.model_copy(update={"chat": Choice("chatml")}))
    assert Service(unfit, "tiny", *given).chat is None


def test_what_is_told_of_tokens_is_bounded_as_a_request_is(live):
    """80 characters for each and for each of the others told with it."""
    body = {"messages": TALK[3:], "logprobs": True, "top_logprobs": 4, "max_tokens": 10, "n": 2, "seed": 1}
    with _shared["living"](live.run, limits=Limits(body=8000)) as small:
        whole = small.ask(PATH, body)
        assert whole.status_code == 200 and len(whole.text) < 8000 + 500
        for more in ({"n": 3}, {"top_logprobs": 5}, {"max_tokens": 11}):
            error = small.ask(PATH, {**body, **more}).json()["error"]
            assert (error["code"], error["param"]) == ("answer_too_long", "max_tokens")
            assert "ask for a lower max_tokens, n or top_logprobs" in error["message"]
            assert small.ask(PATH, {**body, **more, "top_logprobs": 0}).status_code == 200
