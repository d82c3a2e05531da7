"""With echo and logprobs a completion has the tokens of its prompt, as a forward pass scores them."""

import threading

import pytest
import torch
from tests.serve.conftest import get_error, serve_run, token_name
from tokenizers.normalizers import Lowercase

from polyhead.run.run import Run
from polyhead.serve.limits import Limits
from polyhead.serve.openai import logprobs
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as InnerTokenizer

PATH = "/v1/completions"
TEXTS = ["two dogs bark 犬 .", "a", "zwei ü \U0001f415 hunde"]
ECHO = {"echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 3}
LISTS = ("text_offset", "tokens", "token_logprobs", "top_logprobs")


def complete(client, body):
    answer = client.ask(PATH, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def reference_logprobs(run, ids):
    """log p of every token after each place."""
    with torch.inference_mode():
        return run.model(torch.tensor([ids]))[0].double().log_softmax(-1)


def slice_lists(logprobs, start, end=None):
    return {name: logprobs[name][start:end] for name in LISTS}


def check_prompt(run, logprobs, ids):
    """The entries of a prompt, the first token of which has no log-probability."""
    assert logprobs["tokens"] == [token_name(run.tokenizer, token) for token in ids]
    assert {len(logprobs[name]) for name in LISTS} == {len(ids)}
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    for i, (token, p) in enumerate(zip(ids[1:], reference_logprobs(run, ids), strict=False), 1):
        assert logprobs["token_logprobs"][i] == pytest.approx(float(p[token]), abs=1e-5)
        top = {token_name(run.tokenizer, t): float(p[t]) for t in {*p.topk(2).indices.tolist(), token}}
        assert logprobs["top_logprobs"][i] == pytest.approx(top, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("is_text", [True, False])
def test_prompt_logprobs_equal_a_forward_pass(client, is_text, n):
    rows = client.run.tokenizer.encode(TEXTS)
    body = {**ECHO, "prompt": TEXTS if is_text else rows, "n": n, "temperature": 1, "seed": 3}
    without_echo = complete(client, {**body, "echo": False})
    assert len(without_echo) == n * len(TEXTS)
    for choice, expected in zip(complete(client, body), without_echo, strict=True):
        ids, text = rows[choice["index"] // n], TEXTS[choice["index"] // n]
        check_prompt(client.run, slice_lists(choice["logprobs"], 0, len(ids)), ids)
        assert choice["text"] == text + expected["text"]
        output, logprobs = slice_lists(choice["logprobs"], len(ids)), expected["logprobs"]
        assert output["tokens"] == logprobs["tokens"]
        for name in ("token_logprobs", "top_logprobs"):  # rounded as the batch is
            for value, other in zip(output[name], logprobs[name], strict=True):
                assert value == pytest.approx(other, abs=1e-5)
        assert logprobs["text_offset"][0] == 0
        assert output["text_offset"] == [offset + len(text) for offset in logprobs["text_offset"]]


def test_text_offsets_are_starts_of_characters(client):
    """A part of a character has the offset of the character."""
    for text in TEXTS:
        (ids,) = client.run.tokenizer.encode([text])
        data = [client.run.tokenizer.token_bytes[token] for token in ids]
        prefixes = [b"".join(data[:i]).decode(errors="ignore") for i in range(len(ids))]
        for prompt in (text, ids):
            (choice,) = complete(client, {**ECHO, "prompt": prompt, "max_tokens": 8})
            offsets = choice["logprobs"]["text_offset"]
            assert offsets[: len(ids)] == [len(prefix) for prefix in prefixes]
            assert offsets == sorted(offsets) and offsets[-1] <= len(choice["text"])


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"max_tokens": 0, "n": 2}, {"logprobs": 0}], ids=str)
def test_stream_begins_with_the_prompt(client, options):
    body = {**ECHO, "prompt": TEXTS, **options}
    answer = client.ask(PATH, body).json()
    *events, last = client.stream(PATH, {**body, "stream_options": {"include_usage": True}})
    details = {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}  # with cached tokens by now
    assert last["usage"] == answer["usage"] | details
    for choice in answer["choices"]:
        parts = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert parts[0]["text"].startswith(TEXTS[choice["index"] // body.get("n", 1)])
        assert parts[0]["logprobs"]["token_logprobs"][0] is None
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        expected = choice["logprobs"]
        logprobs = {name: [v for part in parts for v in part["logprobs"][name]] for name in expected}
        assert ("top_logprobs" in logprobs) == bool(body["logprobs"])
        for name in ("tokens", "text_offset"):
            assert logprobs[name] == expected[name]
        # a prompt is computed along with others, and rounded as they are
        assert logprobs["token_logprobs"][1:] == pytest.approx(expected["token_logprobs"][1:], abs=1e-5)


def test_max_tokens_zero_scores_the_prompt_only(client):
    rows = client.run.tokenizer.encode(TEXTS)
    answer = client.ask(PATH, {**ECHO, "prompt": TEXTS, "max_tokens": 0, "n": 2}).json()
    for choice in answer["choices"]:
        check_prompt(client.run, choice["logprobs"], rows[choice["index"] // 2])
        assert choice["text"] == TEXTS[choice["index"] // 2] and choice["finish_reason"] == "length"
    n = sum(map(len, rows))
    usage = {"prompt_tokens": n, "completion_tokens": 0, "total_tokens": n}
    assert answer["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 0}}
    (choice,) = complete(client, {"prompt": rows[0], "echo": True, "max_tokens": 0})
    assert (choice["text"], choice["logprobs"]) == (TEXTS[0], None)
    client.wait_idle()


def test_prompts_up_to_the_maximal_length(client):
    run, max_len = client.run, client.run.config.max_len
    ids = (run.tokenizer.encode([" ".join(TEXTS)])[0] * 9)[: max_len + 1]
    for max_tokens in (0, 1, 2):
        body = {**ECHO, "prompt": ids[:max_len], "max_tokens": max_tokens}
        logprobs = client.ask(PATH, body).json()["choices"][0]["logprobs"]
        check_prompt(run, slice_lists(logprobs, 0, max_len), ids[:max_len])
    body = {**ECHO, "prompt": ids, "max_tokens": 0}
    assert get_error(client.ask(PATH, body))["code"] == "context_length_exceeded"
    # truncated tokens have no entries, and the offsets count them
    (choice,) = complete(client, body | {"truncate": True})
    check_prompt(run, choice["logprobs"], ids[1:])
    assert choice["text"] == run.tokenizer.decode([ids])[0]
    assert choice["logprobs"]["text_offset"][0] == len(run.tokenizer.decode([ids[:1]])[0])


def test_prefix_tokens_and_normalization_of_the_tokenizer(runs):
    """As they are computed and counted; they have no text."""
    run, t = runs["decoder"], runs["decoder"].tokenizer
    run = Run(run.model, t.with_template([t.bos_id], []), run.generation)
    with serve_run(run) as client:
        answer = client.ask(PATH, {**ECHO, "prompt": "two dogs", "max_tokens": 0}).json()
        (choice,) = answer["choices"]
        ids = [t.bos_id, *t.encode(["two dogs"])[0]]
        check_prompt(run, choice["logprobs"], ids)
        assert choice["text"] == "two dogs" and choice["logprobs"]["text_offset"] == [0, 0, 3]
        assert answer["usage"]["prompt_tokens"] == len(ids)
        (empty,) = complete(client, {**ECHO, "prompt": "", "max_tokens": 0})
        assert empty["text"] == "" and empty["logprobs"]["token_logprobs"] == [None]
    run = runs["decoder"]
    inner = InnerTokenizer.from_str(run.tokenizer.tokenizer_json)
    inner.normalizer = Lowercase()
    with serve_run(Run(run.model, Tokenizer(inner), run.generation)) as client:
        (choice,) = complete(client, {**ECHO, "prompt": "İ Two DOGS", "max_tokens": 0})
        offsets = dict(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True))
        assert choice["text"] == "İ Two DOGS" and offsets[" dogs"] == 5


def test_prompts_are_scored_in_one_batch(client, monkeypatch):
    calls, score_tokens = [], logprobs.score_tokens

    def count(model, pad_id, rows, top):
        calls.append((threading.current_thread().name, len(rows), top))
        return score_tokens(model, pad_id, rows, top)

    monkeypatch.setattr(logprobs, "score_tokens", count)
    complete(client, {**ECHO, "prompt": TEXTS, "n": 3})
    assert calls == [("polyhead-model", len(TEXTS), 2)]
    complete(client, {**ECHO, "prompt": TEXTS, "echo": False})
    complete(client, {"prompt": TEXTS, "echo": True})
    assert len(calls) == 1, "scored without echo and logprobs"


TWO_TEXTS = {"prompt": ["two dogs"] * 2}
MESSAGES = [{"role": "user", "content": "zwei hunde"}]
CHAT_BODY = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 4, "max_tokens": 10, "n": 2, "seed": 1}


@pytest.mark.parametrize(
    ("max_body", "body", "larger", "param", "message"),
    [
        (
            2000,  # 32 bytes for each token and for each of its alternatives
            {"prompt": [5] * 20, "echo": True, "max_tokens": 1, "logprobs": 2},
            [{"n": 2}, {"logprobs": 3}, {"prompt": [[5] * 20] * 2}],
            "prompt",
            "",
        ),
        (
            2000,
            {"prompt": "two dogs", "max_tokens": 10, "logprobs": 2, "n": 2},
            [{"n": 3}, {"logprobs": 3}, {"max_tokens": 11}, TWO_TEXTS, {"n": 3, "stream": True}],
            "max_tokens",
            "tokens: request a lower max_tokens, n or logprobs",
        ),
        (
            8000,  # 80
            CHAT_BODY,
            [{"n": 3}, {"top_logprobs": 5}, {"max_tokens": 11}],
            "max_tokens",
            "request a lower max_tokens, n or top_logprobs",
        ),
    ],
    ids=["prompt", "output", "chat"],
)
def test_size_of_logprobs_is_limited(chat_client, max_body, body, larger, param, message):
    path = "/v1/chat/completions" if "messages" in body else PATH
    with serve_run(chat_client.run, limits=Limits(max_body=max_body)) as client:
        answer = client.ask(path, body)
        assert answer.status_code == 200 and (path == PATH or len(answer.text) < max_body + 500)
        for fields in larger:
            error = get_error(client.ask(path, body | fields))
            assert (error["code"], error["param"]) == ("answer_too_long", param)
            assert message in error["message"]
            smaller = {"logprobs": None, "top_logprobs": None, "echo": False}
            assert client.ask(path, body | fields | smaller).status_code == 200
        client.wait_idle()
