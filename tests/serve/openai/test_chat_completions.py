"""Chat completions over HTTP equal those of the run, and log-probabilities those of a softmax."""

import json

import openai
import pytest
import torch
from tests.serve.conftest import token_name, with_generation
from tests.serve.openai.chat_helpers import MESSAGES, answer_text, start_answer

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation
from polyhead.generation.decoding import sampler
from polyhead.generation.text_output import TokenLogprobs
from polyhead.run.run import Run
from polyhead.serve.auth import ApiKeys
from polyhead.serve.limits import Limits
from polyhead.serve.openai.logprobs import format_chat_logprobs
from polyhead.serve.service import Service
from polyhead.tokenizers.train_tokenizer import train_tokenizer

CHAT, PATH = "/v1/chat/completions", "/v1/completions"
PENALTIES = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"40": 2}}
OPTIONS = [{"temperature": 0}, {"seed": 3}, {"n": 3, "seed": 4, "top_k": 20}, {"n": 2, "beam_size": 4}]
OPTIONS += [{"max_tokens": 1}, {"temperature": 0, **PENALTIES}]


def join_content(events):
    return "".join(event["choices"][0]["delta"]["content"] for event in events)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_answers_equal_those_of_the_run(chat_client, options):
    run, options = chat_client.run, {"seed": 7} | options
    output = start_answer(run, MESSAGES, **options)
    texts = output.collect_texts()
    answer = chat_client.ask(CHAT, {"model": "tiny", "messages": MESSAGES, **options}).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    message = {"role": "assistant", "refusal": None}
    choices = answer["choices"]
    assert [choice["message"] for choice in choices] == [message | {"content": text} for text in texts]
    assert [choice["index"] for choice in choices] == list(range(options.get("n", 1)))
    assert [choice["finish_reason"] for choice in choices] == output.finish_reasons
    prompt = run.chat_session().encode_prompt(parse_conversation(MESSAGES))
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    body = {"messages": MESSAGES, **options, "stream_options": {"include_usage": True}}
    *events, last = chat_client.stream(CHAT, body)
    contents, roles = [""] * len(texts), [0] * len(texts)
    for event in events:
        assert event["object"] == "chat.completion.chunk"
        (choice,) = event["choices"]
        contents[choice["index"]] += choice["delta"]["content"]
        roles[choice["index"]] += choice["delta"].get("role") == "assistant"
    assert contents == texts and roles == [1] * len(texts) and last["choices"] == []
    details = {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}  # with cached tokens by now
    assert last["usage"] == answer["usage"] | details


def test_openai_client_converses(chat_client):
    create = chat_client.openai().chat.completions.create
    options = {"model": "tiny", "messages": MESSAGES, "seed": 5}
    expected = answer_text(chat_client.run, MESSAGES, seed=5, max_tokens=9)
    answer = create(**options, max_completion_tokens=9, logprobs=True, top_logprobs=2, tool_choice="none")
    (choice,), count = answer.choices, answer.usage.completion_tokens
    assert choice.message.content == expected and count <= 9
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * count
    chunks = list(create(**options, max_tokens=9, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    with pytest.raises(openai.BadRequestError) as error:
        create(model="tiny", messages=MESSAGES[:1])
    assert error.value.param == "messages" and "a message with the role 'user'" in str(error.value)


SYSTEM = {"role": "system", "content": "name them"}
DEVELOPER = SYSTEM | {"role": "developer"}
PARTS = [{"type": "text", "text": "name "}, {"type": "text", "text": "them"}]
SILENT = {"role": "assistant", "content": ""}
NULL_CALLS = SILENT | {"content": None, "tool_calls": []}


@pytest.mark.parametrize(
    ("messages", "equivalent"),
    [
        ([DEVELOPER | {"content": PARTS}, *MESSAGES[1:]], [SYSTEM, *MESSAGES[1:]]),
        ([DEVELOPER, *MESSAGES[1:]], [SYSTEM, *MESSAGES[1:]]),
        ([*MESSAGES, DEVELOPER], [*MESSAGES, SYSTEM]),
        ([*MESSAGES[:3], DEVELOPER, MESSAGES[3]], [*MESSAGES[:3], SYSTEM, MESSAGES[3]]),
        ([MESSAGES[0], DEVELOPER, MESSAGES[1]], [MESSAGES[0], SYSTEM, MESSAGES[1]]),
        ([MESSAGES[1], NULL_CALLS, MESSAGES[3]], [MESSAGES[1], SILENT, MESSAGES[3]]),
        ([MESSAGES[1], {"role": "assistant"}, MESSAGES[3]], [MESSAGES[1], SILENT, MESSAGES[3]]),
        ([MESSAGES[1], SILENT | {"content": None}], [MESSAGES[1]]),
    ],
    ids=range(8),
)
def test_equivalent_conversations_have_equal_answers(chat_client, messages, equivalent):
    options = {"temperature": 0, "max_tokens": 5}
    expected = answer_text(chat_client.run, equivalent, **options)
    (choice,) = chat_client.ask(CHAT, {"messages": messages, **options}).json()["choices"]
    assert choice["message"]["content"] == expected
    if not any(isinstance(m.get("content"), list) for m in messages):  # the run has no such parts
        assert chat_client.run.chat(messages, temperature=0, max_new_tokens=5) == expected


@pytest.mark.parametrize("truncate", [False, True])
def test_final_assistant_message_is_continued(chat_client, truncate):
    """With the tokens of a plain greedy loop after the prompt without the end of its last turn."""
    run, messages = chat_client.run, [*MESSAGES, {"role": "assistant", "content": "two dogs"}]
    ids = list(chat_client.service.chat.encode_prompt(parse_conversation(messages)))
    prompt_text = run.tokenizer.decode([ids])[0]
    assert prompt_text.endswith("Assistant: two dogs")
    for _ in range(6):
        with torch.inference_mode():
            ids.append(int(run.model(torch.tensor([ids]))[0, -1].argmax()))
    expected = run.tokenizer.decode([ids])[0][len(prompt_text) :].rstrip("\ufffd")
    for fields in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        body = {"messages": messages, "temperature": 0, "max_tokens": 6, "truncate": truncate, **fields}
        answer = chat_client.ask(CHAT, body)
        assert "x-warnings" not in answer.headers
        assert answer.json()["choices"][0]["message"]["content"] == expected
        assert join_content(chat_client.stream(CHAT, body)) == expected
    assert run.chat(messages, temperature=0, max_new_tokens=6) == expected


def softmax_logprobs(run, prompt, tokens):
    """log p of the vocabulary at the place of each token, by the model and a plain softmax."""
    with torch.inference_mode():
        logits = run.model(torch.tensor([[*prompt, *tokens]]))[0]
    return torch.log(torch.softmax(logits.double(), -1))[len(prompt) - 1 : -1]


@pytest.mark.acceptance("C10")
@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 1, "temperature": 1e-38}], ids=str
)
def test_logprobs_of_completions_equal_a_softmax(chat_client, options):
    run, body = chat_client.run, {"prompt": "a dog", "max_tokens": 6, **options}
    text = chat_client.ask(PATH, {**body, "logprobs": 5}).text
    (choice,) = json.loads(text, parse_constant=lambda name: pytest.fail(name))["choices"]
    output = run.engine().submit("a dog", max_new_tokens=6, **({"seed": 0} | options))
    output.collect_texts()
    (tokens,), t = output.tokens, run.tokenizer
    prompt = run.prompt_template.build_prompt(t.encode(["a dog"])[0])
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == [token_name(t, token) for token in tokens]
    expected = softmax_logprobs(run, prompt, tokens)
    for i, (token, p) in enumerate(zip(tokens, expected, strict=True)):
        assert logprobs["token_logprobs"][i] == pytest.approx(float(p[token]), abs=1e-4)
        ids = {*p.topk(5).indices.tolist(), token}
        top = {token_name(t, i): float(p[i]) for i in ids}
        assert logprobs["top_logprobs"][i] == pytest.approx(top, abs=1e-4)
    (without_top,) = chat_client.ask(PATH, {**body, "logprobs": 0}).json()["choices"]
    assert "top_logprobs" not in without_top["logprobs"] and without_top["text"] == choice["text"]
    parts = [e["choices"][0]["logprobs"] for e in chat_client.stream(PATH, {**body, "logprobs": 5})]
    assert [token for part in parts for token in part["tokens"]] == logprobs["tokens"]
    stream_result = [value for part in parts for value in part["token_logprobs"]]
    assert stream_result == pytest.approx(logprobs["token_logprobs"], abs=1e-5)
    stream_result = [list(top) for part in parts for top in part["top_logprobs"]]
    assert stream_result == [*map(list, logprobs["top_logprobs"])]


def test_logprobs_of_chat_equal_a_softmax(chat_client):
    run, options = chat_client.run, {"seed": 2, "max_tokens": 5}
    body = {"messages": MESSAGES, **options, "logprobs": True, "top_logprobs": 20}
    (choice,) = chat_client.ask(CHAT, body).json()["choices"]
    output = start_answer(run, MESSAGES, **options)
    output.collect_texts()
    (tokens,), t = output.tokens, run.tokenizer
    prompt = run.chat_session().encode_prompt(parse_conversation(MESSAGES))
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [token_name(t, token) for token in tokens]
    for entry, token, p in zip(content, tokens, softmax_logprobs(run, prompt, tokens), strict=True):
        assert entry["logprob"] == pytest.approx(float(p[token]), abs=1e-4)
        top = entry["top_logprobs"]
        for other, i in zip(top, p.topk(20).indices.tolist(), strict=True):
            assert [bytes(other["bytes"]).decode(errors="replace")] == t.decode([[i]])
        assert [other["logprob"] for other in top] == pytest.approx(p.topk(20).values.tolist(), abs=1e-4)
        assert top[0]["token"] == token_name(t, int(p.argmax()))
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
    assert text.rstrip("\ufffd").strip() == choice["message"]["content"]
    events = chat_client.stream(CHAT, body)
    stream_result = [entry for event in events for entry in event["choices"][0]["logprobs"]["content"]]
    assert [entry["token"] for entry in stream_result] == [entry["token"] for entry in content]
    (without_extras,) = chat_client.ask(CHAT, {"messages": MESSAGES, **options}).json()["choices"]
    assert without_extras["logprobs"] is None and without_extras["message"] == choice["message"]


def test_bytes_of_tokens_add_up_to_the_text(chat_client):
    run = chat_client.run
    training_text = ["zwei 犬 dogs bark"] * 5
    for tokenizer, text in (
        (run.tokenizer, "zwei 犬 ü \U0001f415"),
        *((train_tokenizer(training_text, Choice(name), 120), "dogs bark") for name in ("char", "unigram")),
    ):
        ids = [*tokenizer.encode([text])[0], tokenizer.eos_id]
        logprobs = TokenLogprobs(ids, [-1.0] * len(ids), [()] * len(ids))
        content = format_chat_logprobs(Run(run.model, tokenizer, run.generation), logprobs)["content"]
        *data, end = (bytes(entry["bytes"]) for entry in content)
        assert b"".join(data).decode().strip() == text and end == b""
        # a part of a character is a byte, not the letter that it is shown as
        assert b"\xf0" in data or tokenizer is not run.tokenizer


def test_top_logprobs_are_computed_on_request_only(chat_client, monkeypatch):
    calls, get_top = [], sampler.get_top_logprobs

    def count(log_probs, k):
        calls.append((len(log_probs), k))
        return get_top(log_probs, k)

    monkeypatch.setattr(sampler, "get_top_logprobs", count)
    chat_client.ask(PATH, {"prompt": "dogs", "logprobs": 0, "max_tokens": 3})
    chat_client.ask(CHAT, {"messages": MESSAGES, "logprobs": True, "max_tokens": 3})
    assert calls == []
    chat_client.ask(PATH, {"prompt": "dogs", "n": 2, "logprobs": 4, "max_tokens": 1})
    assert calls == [(2, 4)]


def test_chat_format_of_the_service(runs):
    def make_service(run, chat):
        return Service(run, "tiny", Limits(), ApiKeys(), chat=chat and Choice(chat))

    assert make_service(runs["decoder"], "zephyr").chat.choice == Choice("zephyr")
    for kind, chat, message in (
        ("decoder", "chatml", "needs the token"),
        ("encoder", "plain", "only language models support conversations"),
    ):
        with pytest.raises(UserError, match=message):
            make_service(runs[kind], chat)
    assert make_service(with_generation(runs["decoder"], chat=Choice("chatml")), None).chat is None
