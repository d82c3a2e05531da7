"""With echo and logprobs a completion tells of the tokens of its prompt, as a direct forward of the model
judges them.
"""

from __future__ import annotations

import threading

import pytest
import torch
from tests.serve.conftest import living, make, named
from tokenizers.normalizers import Lowercase

from polyhead.run.run import Run
from polyhead.serve.http.limits import Limits
from polyhead.serve.openai import echo
from polyhead.tokenizers.tokenizer import Tokenizer

PATH = "/v1/completions"
TEXTS = ["two dogs bark 犬 .", "a", "zwei ü \U0001f415 hunde"]
BOTH = {"echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 3}
LISTS = ("text_offset", "tokens", "token_logprobs", "top_logprobs")


def choices(live, body):
    answer = live.ask(PATH, body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def direct(run, ids):
    """log p of every token behind each place."""
    with torch.inference_mode():
        return run.model(torch.tensor([ids]))[0].double().log_softmax(-1)


def check(run, told, ids):
    """What is told of these tokens, the first of which nothing comes before."""
    log_probs = direct(run, ids)
    assert told["tokens"] == [named(run.tokenizer, token) for token in ids]
    assert {len(told[name]) for name in LISTS} == {len(ids)}
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    for token, p, value, top in zip(
        ids[1:], log_probs, told["token_logprobs"][1:], told["top_logprobs"][1:], strict=False
    ):
        assert value == pytest.approx(float(p[token]), abs=1e-5)
        best = {named(run.tokenizer, int(i)): float(v) for v, i in zip(*p.topk(2), strict=True)}
        assert top == pytest.approx(best | {named(run.tokenizer, token): float(p[token])}, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("by", ["text", "ids"])
def test_the_prompt_is_told_as_the_model_judges_it(speaker, by, n):
    run = speaker.run
    rows = run.tokenizer.encode(TEXTS)
    body = {**BOTH, "prompt": TEXTS if by == "text" else rows, "n": n, "temperature": 1, "seed": 3}
    plain = choices(speaker, {**body, "echo": False})
    assert len(plain) == n * len(TEXTS)
    for choice, said in zip(choices(speaker, body), plain, strict=True):
        ids, text = rows[choice["index"] // n], TEXTS[choice["index"] // n]
        told = choice["logprobs"]
        before = {name: told[name][: len(ids)] for name in LISTS}
        check(run, before, ids)
        assert choice["text"] == text + said["text"]
        # what was said is told as without an echo, behind it
        behind = {name: told[name][len(ids) :] for name in LISTS}
        assert behind["tokens"] == said["logprobs"]["tokens"]
        for name in ("token_logprobs", "top_logprobs"):  # rounded as what else runs
            for one, other in zip(behind[name], said["logprobs"][name], strict=True):
                assert one == pytest.approx(other, abs=1e-5)
        assert said["logprobs"]["text_offset"][0] == 0
        assert behind["text_offset"] == [at + len(text) for at in said["logprobs"]["text_offset"]]


@pytest.mark.parametrize("by", ["text", "ids"])
def test_tokens_begin_where_they_stand_in_the_text(speaker, by):
    """A part of a character stands where the character does."""
    for text in TEXTS:
        (ids,) = speaker.run.tokenizer.encode([text])
        body = {**BOTH, "prompt": text if by == "text" else ids, "max_tokens": 8}
        (choice,) = choices(speaker, body)
        places = choice["logprobs"]["text_offset"]
        spoken = [speaker.run.tokenizer.token_bytes[token] for token in ids]
        done = [b"".join(spoken[:i]).decode(errors="ignore") for i in range(len(ids))]
        assert places[: len(ids)] == [len(one) for one in done]
        assert places == sorted(places) and places[-1] <= len(choice["text"])


@pytest.mark.parametrize("way", [{}, {"n": 2}, {"max_tokens": 0, "n": 2}, {"logprobs": 0}], ids=str)
def test_a_stream_tells_of_the_prompt_first(speaker, way):
    body = {**BOTH, "prompt": TEXTS, **way}
    whole = speaker.ask(PATH, body).json()
    events = speaker.events(PATH, {**body, "stream_options": {"include_usage": True}})
    assert events.pop()["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in parts) == choice["text"]
        assert parts[0]["text"].startswith(TEXTS[choice["index"] // body.get("n", 1)])
        assert parts[0]["logprobs"]["token_logprobs"][0] is None
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        told = {name: [v for one in parts for v in one["logprobs"][name]] for name in choice["logprobs"]}
        assert ("top_logprobs" in told) == bool(body["logprobs"])
        # a prompt is computed along with others, and rounded as they are
        for name in {"tokens", "text_offset"} & told.keys():
            assert told[name] == choice["logprobs"][name]
        assert told["token_logprobs"][1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-5)


def test_no_token_is_said_where_none_is_wanted(speaker):
    rows = speaker.run.tokenizer.encode(TEXTS)
    answer = speaker.ask(PATH, {**BOTH, "prompt": TEXTS, "max_tokens": 0, "n": 2}).json()
    for choice in answer["choices"]:
        check(speaker.run, choice["logprobs"], rows[choice["index"] // 2])
        assert choice["text"] == TEXTS[choice["index"] // 2] and choice["finish_reason"] == "length"
    read = sum(map(len, rows))
    nothing = {"prompt_tokens_details": {"cached_tokens": 0}}  # nor is anything read
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": 0, "total_tokens": read, **nothing}
    (plain,) = choices(speaker, {"prompt": rows[0], "echo": True, "max_tokens": 0})
    assert (plain["text"], plain["logprobs"]) == (TEXTS[0], None)
    speaker.idle()


def test_the_sum_is_the_score_of_the_text(speaker):
    """A score counts the text's first token, behind the mark of a document, and its end."""
    run = speaker.run
    (ids,), mark = run.tokenizer.encode(TEXTS[:1]), run.tokenizer.eos_id
    body = {**BOTH, "prompt": [mark, *ids], "max_tokens": 0}
    (choice,) = choices(speaker, body)
    (score,) = run.score(TEXTS[:1])
    told = choice["logprobs"]["token_logprobs"][1:]
    ends = float(direct(run, [mark, *ids])[-1, mark]) if score.tokens > len(ids) else 0.0
    assert sum(told) + ends == pytest.approx(score.log_prob, abs=1e-4)


def test_lengths_about_the_greatest(speaker):
    most = speaker.run.config.max_len
    ids = (speaker.run.tokenizer.encode([" ".join(TEXTS)])[0] * 9)[: most + 1]
    for length, wanted, fits in [(most, 0, True), (most + 1, 0, False), (most, 1, True), (most, 2, True)]:
        body = {**BOTH, "prompt": ids[:length], "max_tokens": wanted}
        answer = speaker.ask(PATH, body)
        assert answer.status_code == (200 if fits else 400), (length, wanted)
        if not fits:
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        else:
            told = answer.json()["choices"][0]["logprobs"]
            check(speaker.run, {name: told[name][:length] for name in LISTS}, ids[:length])
    # of what was cut away nothing is told, and the rest stands where it stood
    (cut,) = choices(speaker, {**BOTH, "prompt": ids, "max_tokens": 0, "truncate": True})
    check(speaker.run, cut["logprobs"], ids[1:])
    assert cut["text"] == speaker.run.tokenizer.decode([ids])[0]
    assert cut["logprobs"]["text_offset"][0] == len(speaker.run.tokenizer.decode([ids[:1]])[0])


def test_what_stands_before_every_text_is_told_with_it(speaker):
    """As it is read and counted; it takes no place in the text."""
    t = speaker.run.tokenizer
    run = Run(speaker.run.model, t.with_template([t.bos_id], []), speaker.run.generation)
    with living(run) as live:
        answer = live.ask(PATH, {**BOTH, "prompt": "two dogs", "max_tokens": 0}).json()
        (choice,) = answer["choices"]
        ids = [t.bos_id, *t.encode(["two dogs"])[0]]
        check(run, choice["logprobs"], ids)
        assert choice["text"] == "two dogs" and choice["logprobs"]["text_offset"] == [0, 0, 3]
        assert answer["usage"]["prompt_tokens"] == len(ids)
        (empty,) = choices(live, {**BOTH, "prompt": "", "max_tokens": 0})
        assert empty["text"] == "" and empty["logprobs"]["token_logprobs"] == [None]


def test_tokens_stand_in_the_text_that_was_given_not_in_what_is_read_of_it(speaker):
    inner = speaker.run.tokenizer._inner.__class__.from_str(speaker.run.tokenizer.tokenizer_json)
    inner.normalizer = Lowercase()
    t = Tokenizer(inner)
    with living(Run(speaker.run.model, t, speaker.run.generation)) as live:
        (choice,) = choices(live, {**BOTH, "prompt": "İ Two DOGS", "max_tokens": 0})
        told = dict(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True))
        assert choice["text"] == "İ Two DOGS" and told[" dogs"] == 5


def test_the_models_thread_judges_all_prompts_at_once(speaker, monkeypatch):
    seen, true = [], echo.score_tokens

    def score_tokens(model, pad_id, rows, top):
        seen.append((threading.current_thread().name, len(rows), top))
        return true(model, pad_id, rows, top)

    monkeypatch.setattr(echo, "score_tokens", score_tokens)
    choices(speaker, {**BOTH, "prompt": TEXTS, "n": 3})
    assert seen == [("polyhead-model", len(TEXTS), 2)]
    choices(speaker, {**BOTH, "prompt": TEXTS, "echo": False})
    choices(speaker, {"prompt": TEXTS, "echo": True})
    assert len(seen) == 1, "nothing is judged for those who do not ask"


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_harness_reads_the_likelihood_of_a_continuation(speaker, tokens):
    """As lm-evaluation-harness does: the last token is not of the text, and the likeliest is found by its
    number.
    """
    run = speaker.run
    context, rest = run.tokenizer.encode(["two dogs"])[0], run.tokenizer.encode([" bark 犬 ."])[0]
    greedy = [int(direct(run, context)[-1].argmax())]
    for continuation, likeliest in ((rest, False), (greedy, True)):
        ids = context + continuation
        body = {"model": "tiny", "prompt": [ids], "temperature": 0, "max_tokens": tokens, "logprobs": 1}
        (choice,) = choices(speaker, {**body, "seed": 1234, "echo": True})
        told, end = choice["logprobs"], -1 if tokens else None
        values = told["token_logprobs"][len(context) : end]
        tops = told["top_logprobs"][len(context) : end]
        wanted = direct(run, ids)[len(context) - 1 :].gather(1, torch.tensor([*continuation, 0])[:, None])
        assert sum(values) == pytest.approx(float(wanted[:-1].sum()), abs=1e-5)
        assert all(p == max(top.values()) for p, top in zip(values, tops, strict=True)) == likeliest


@pytest.mark.parametrize(
    ("kind", "body", "param", "said"),
    [
        ("decoder", {"max_tokens": 0}, "max_tokens", "echo=true"),
        ("decoder", {"max_tokens": 0, "logprobs": 1}, "max_tokens", "echo=true"),
        ("decoder", {**BOTH, "temperature": 1, "beam_size": 2}, "logprobs", "sampled text"),
        ("decoder", {**BOTH, "max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ("encoder-decoder", {"max_tokens": 0, "echo": True}, "echo", "is supported only for language models"),
        ("encoder-decoder", {"max_tokens": 0}, "max_tokens", "expected 1 or more"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(services, kind, body, param, said):
    answer = services[kind].ask(PATH, {"prompt": "a", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param and said in error["message"]


def test_a_model_that_says_no_numbers_is_told(speaker):
    run = make("decoder")
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
    with living(run) as live:
        answer = live.ask(PATH, {**BOTH, "prompt": "two dogs", "max_tokens": 0})
        assert answer.status_code == 500 and "NaN" in answer.json()["error"]["message"]
        live.idle()


def test_what_is_told_is_bounded_as_a_request_is(speaker):
    """2,000 bytes, for each token 32 and for each of the others told with it as many, of every output."""
    body = {"prompt": [5] * 20, "echo": True, "max_tokens": 1, "logprobs": 2}
    with living(speaker.run, limits=Limits(max_body=2000)) as live:
        assert live.ask(PATH, body).status_code == 200
        for more in ({"n": 2}, {"logprobs": 3}, {"prompt": [[5] * 20] * 2}):
            error = live.ask(PATH, {**body, **more}).json()["error"]
            assert (error["code"], error["param"]) == ("answer_too_long", "prompt")
            assert live.ask(PATH, {**body, **more, "echo": False}).status_code == 200


def test_what_is_told_of_new_tokens_is_bounded_too(speaker):
    """32 characters for each and for each of the others told with it; without logprobs
    there are only texts.
    """
    body = {"prompt": "two dogs", "max_tokens": 10, "logprobs": 2, "n": 2}
    with living(speaker.run, limits=Limits(max_body=2000)) as live:
        assert live.ask(PATH, body).status_code == 200
        for more in ({"n": 3}, {"logprobs": 3}, {"max_tokens": 11}, {"prompt": ["two dogs"] * 2}):
            error = live.ask(PATH, {**body, **more}).json()["error"]
            assert (error["code"], error["param"]) == ("answer_too_long", "max_tokens")
            without = {name: value for name, value in {**body, **more}.items() if name != "logprobs"}
            assert live.ask(PATH, without).status_code == 200
        error = live.ask(PATH, {**body, "n": 3, "stream": True}).json()["error"]
        assert error["message"] == (
            "logprobs of up to 30 tokens would take 2,880 characters; the maximum is 2,000, or 20 tokens: "
            "request a lower max_tokens, n or logprobs"
        )
        live.idle()
