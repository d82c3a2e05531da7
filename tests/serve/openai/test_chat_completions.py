"""Conversations over HTTP are those of the run, token by token, and log-probabilities those of a plain
softmax.
"""

from __future__ import annotations

import json

import openai
import pytest
import torch
from tests.serve.conftest import living, named
from tests.serve.openai.chat_completions_helpers import TALK, wanted
from tests.serve.openai.chat_completions_helpers import live as live

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

WAYS = [
    {"temperature": 0},
    {"seed": 3},
    {"n": 3, "seed": 4, "top_k": 20},
    {"n": 2, "beam_size": 4},
    {"max_tokens": 1},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"40": 2}},
]
PATH = "/v1/chat/completions"


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
        client.chat.completions.create(model="tiny", messages=[TALK[0]])
    assert refused.value.param == "messages" and "a message with the role 'user'" in str(refused.value)


NAMES = {"role": "developer", "content": "name them"}
START = {"role": "assistant", "content": "two "}
AS_WRITTEN = [
    ([NAMES, *TALK[1:]], [NAMES | {"role": "system"}, *TALK[1:]]),
    ([*TALK, NAMES], [*TALK, NAMES | {"role": "system"}]),
    ([*TALK[:3], NAMES, TALK[3]], [*TALK[:3], NAMES | {"role": "system"}, TALK[3]]),
    ([TALK[0], NAMES, TALK[1]], [TALK[0], NAMES | {"role": "system"}, TALK[1]]),
    ([TALK[1], {"role": "assistant", "content": None, "tool_calls": []}, TALK[3]],
        [TALK[1], {"role": "assistant", "content": ""}, TALK[3]]),
    ([TALK[1], {"role": "assistant"}, TALK[3]], [TALK[1], {"role": "assistant", "content": ""}, TALK[3]]),
    ([TALK[1], {"role": "assistant", "content": None}], [TALK[1]]),
]  # fmt: skip


@pytest.mark.parametrize(("talk", "written"), AS_WRITTEN, ids=range(len(AS_WRITTEN)))
def test_conversations_as_clients_send_them(live, talk, written):
    (text,) = wanted(live.run, written, temperature=0, max_tokens=5).collect_texts()
    asked = {"temperature": 0, "max_tokens": 5}
    (choice,) = live.ask(PATH, {"messages": talk, **asked}).json()["choices"]
    assert choice["message"]["content"] == text
    assert live.run.chat(talk, temperature=0, max_new_tokens=5) == text
    items = [{"content": None} | one for one in talk]
    response = live.ask(
        "/v1/responses", {"input": items, "instructions": "be kind", "max_output_tokens": 5, "temperature": 0}
    )
    instructed = [{"role": "system", "content": "be kind"}, *written]
    (text,) = wanted(live.run, instructed, temperature=0, max_tokens=5).collect_texts()
    assert response.json()["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize("truncate", [False, True])
def test_the_start_of_an_answer_is_continued(live, truncate):
    """It is what the plain loop says after the written conversation without the end of its last turn."""
    run, talk = live.run, [*TALK, START | {"content": "two dogs"}]
    prompt = live.service.chat.encode_prompt(parse_conversation(talk))
    written = run.tokenizer.decode([prompt])[0]
    assert written.endswith("Assistant: two dogs")
    ids = list(prompt)
    for _ in range(6):
        with torch.inference_mode():
            ids.append(int(run.model(torch.tensor([ids]))[0, -1].argmax()))
    text = run.tokenizer.decode([ids])[0][len(written) :].rstrip("\ufffd")
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        asked = {"messages": talk, "temperature": 0, "max_tokens": 6, "truncate": truncate, **more}
        answer = live.ask(PATH, asked)
        assert "x-warnings" not in answer.headers
        (choice,) = answer.json()["choices"]
        assert choice["message"]["content"] == text
        assert "".join(one["choices"][0]["delta"]["content"] for one in live.events(PATH, asked)) == text
    assert run.chat(talk, temperature=0, max_new_tokens=6) == text


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"messages": TALK, "continue_final_message": True}, "continue_final_message", "is not one of the"),
        ({"messages": TALK, "add_generation_prompt": False}, "add_generation_prompt", "is not one of the"),
        ({"messages": [*TALK, START], "continue_final_message": False}, "continue_final_message",
            "continue_final_message: false, but the last message is continued"),
        ({"messages": [*TALK, START], "add_generation_prompt": True}, "add_generation_prompt",
            "add_generation_prompt: true, but the last message is continued"),
        ({"messages": TALK, "continue_final_message": 1}, "continue_final_message", ""),
    ],
)  # fmt: skip
def test_whether_an_answer_is_continued_must_fit_the_last_message(live, body, param, said):
    error = live.ask(PATH, body).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param) and said in error["message"]


def test_a_field_that_is_null_is_as_one_that_is_not_there(live):
    names = ("stop", "temperature", "top_p", "stream", "logprobs", "stream_options", "response_format",
        "n", "seed", "max_completion_tokens", "top_logprobs", "logit_bias", "tools", "user")  # fmt: skip
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
        ({"messages": [{"role": "user", "content": [{"type": "image_url",
            "image_url": {"url": "http://x"}}]}]}, "messages", "'image_url'; this model supports text only"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages", "supports text only"),
        ({"messages": [TALK[1], {"role": "assistant", "content": "", "tool_calls": [{}]}, TALK[3]]},
            "messages", "call 0 of message 1 is {}, expected an id and a function"),
        ({"messages": [TALK[1], TALK[2] | {"function_call": {"name": "f"}}, TALK[3]]}, "messages",
            "function_call, which is not supported"),
        ({"messages": TALK, "tools": [{"type": "function"}]}, "tools", "tool 0 is {'type': 'function'}, "
            "expected"),
        ({"messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools",
            "does not support tools; formats that do: chatml, jinja, llama3, mistral"),
        ({"messages": TALK, "top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"messages": TALK, "logprobs": True, "top_logprobs": 21}, "top_logprobs", ""),
        ({"messages": TALK, "logprobs": 3}, "logprobs", ""),
        ({"messages": TALK, "logprobs": True, "beam_size": 2}, "logprobs", "only for sampled text"),
        ({"messages": TALK, "max_completion_tokens": 0}, "max_completion_tokens", ""),
        ({"messages": [{"role": "user", "content": "x" * 40_000}]}, "messages", "40016 characters"),
        ({"messages": [{"role": "user", "content": "dogs " * 300}]}, "messages",
            "the model's maximum is 200"),
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
    ids = run.prompt_template.build_prompt(run.tokenizer.encode(["a dog"])[0])
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


def test_a_format_can_be_named_for_the_service(runs):
    given = (Limits(), ApiKeys())
    assert Service(runs["decoder"], "tiny", *given, chat=Choice("zephyr")).chat.choice == Choice("zephyr")
    with pytest.raises(UserError, match="needs the token"):
        Service(runs["decoder"], "tiny", *given, chat=Choice("chatml"))
    with pytest.raises(UserError, match="only language models support conversations"):
        Service(runs["encoder"], "tiny", *given, chat=Choice("plain"))
    run = runs["decoder"]
    unfit = Run(run.model, run.tokenizer, run.generation.model_copy(update={"chat": Choice("chatml")}))
    assert Service(unfit, "tiny", *given).chat is None


def test_what_is_told_of_tokens_is_bounded_as_a_request_is(live):
    """80 characters for each and for each of the others told with it."""
    body = {"messages": TALK[3:], "logprobs": True, "top_logprobs": 4, "max_tokens": 10, "n": 2, "seed": 1}
    with living(live.run, limits=Limits(max_body=8000)) as small:
        whole = small.ask(PATH, body)
        assert whole.status_code == 200 and len(whole.text) < 8000 + 500
        for more in ({"n": 3}, {"top_logprobs": 5}, {"max_tokens": 11}):
            error = small.ask(PATH, {**body, **more}).json()["error"]
            assert (error["code"], error["param"]) == ("answer_too_long", "max_tokens")
            assert "request a lower max_tokens, n or top_logprobs" in error["message"]
            assert small.ask(PATH, {**body, **more, "top_logprobs": 0}).status_code == 200
