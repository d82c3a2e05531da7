"""What the service says is what the run says when it is called directly, whole or piece by piece."""

from __future__ import annotations

import json
from types import SimpleNamespace

import openai
import pytest
import torch
from tests.serve.conftest import living, make, named

from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve import engine_thread

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]
WAYS = [
    {"temperature": 0},
    {"seed": 3},
    {"n": 3, "seed": 4, "top_k": 20},
    {"n": 2, "beam_size": 4},
    {"max_tokens": 1, "temperature": 0},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"seed": 5, "n": 2, "presence_penalty": -2, "logit_bias": {"40": 4, "41": -100}},
]


def of_run(way):
    return {{"max_tokens": "max_new_tokens"}.get(name, name): value for name, value in way.items()}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_completions_are_what_the_run_generates(speaker, way):
    for text in TEXTS:
        (wanted,) = speaker.run.generate([text], **{"n": 1} | of_run(way))
        answer = speaker.ask("/v1/completions", {"model": "tiny", "prompt": text, **way}).json()
        assert [choice["text"] for choice in answer["choices"]] == wanted
        assert [choice["index"] for choice in answer["choices"]] == list(range(way.get("n", 1)))
        assert {choice["finish_reason"] for choice in answer["choices"]} <= {"stop", "length"}
        assert answer["object"] == "text_completion" and answer["model"] == "tiny"


@pytest.mark.parametrize("way", [{"temperature": 0}, {"n": 3, "seed": 4}, {"n": 2, "beam_size": 4}], ids=str)
def test_the_ends_of_a_run_end_its_completions(way, serving):
    """Each text has another end: a token that is said in its middle."""
    for text in TEXTS[:3]:
        made = make("decoder")
        stream = made.engine().submit(text, **of_run(way))
        plain, end = stream.collect_texts(), stream.tokens[0][2]
        made.generation = made.generation.model_copy(
            update={"stop_tokens": (made.tokenizer.ids_to_tokens([end])[0],)}
        )
        with serving(made) as live:
            answer = live.ask("/v1/completions", {"prompt": text, **way}).json()
        found = [choice["text"] for choice in answer["choices"]]
        assert [found] == made.generate([text], **{"n": 1} | of_run(way)) != [plain]
        if "beam_size" not in way:
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert plain[0].startswith(found[0]) and len(found[0]) < len(plain[0])


@pytest.mark.acceptance("C7")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_pieces_of_a_stream_make_the_whole(speaker, way):
    body = {"prompt": TEXTS, **way}
    whole = speaker.ask("/v1/completions", body).json()
    events = speaker.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    said = [""] * len(whole["choices"])
    reasons = [None] * len(said)
    for event in events[:-1]:
        assert event["usage"] is None
        (choice,) = event["choices"]
        assert reasons[choice["index"]] is None, "nothing comes after the end"
        said[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert said == [choice["text"] for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    details = {"prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]}  # read before by then
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"] | details


def test_usage_counts_what_was_read_and_said(speaker):
    prompt = speaker.run.prompt_template.build_prompt(speaker.run.tokenizer.encode([TEXTS[1]])[0])
    (found,) = speaker.run.engine().submit(TEXTS[1], seed=1, max_new_tokens=7).request.result()
    answer = speaker.ask("/v1/completions", {"prompt": TEXTS[1], "seed": 1, "max_tokens": 7}).json()
    said = len(found.tokens) + (answer["choices"][0]["finish_reason"] == "stop")
    details = answer["usage"].pop("prompt_tokens_details")  # of what others had read before
    assert details.keys() == {"cached_tokens"} and details["cached_tokens"] < len(prompt)
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": said,
        "total_tokens": len(prompt) + said,
    }


def test_the_time_of_a_token_is_that_between_two_of_its_own_text(runs, serving, monkeypatch):
    about, steps = "polyhead_time_per_output_token_seconds", []
    with serving(runs["decoder"]) as live:
        told, engine = live.service.metrics.registry.get_sample_value, live.service.engine.engine
        for way in ({"beam_size": 4}, {"max_tokens": 1}):  # between which tokens?
            assert live.ask("/v1/completions", {"prompt": TEXTS, "n": 2, **way}).status_code == 200
        assert told(f"{about}_count") == 0
        assert told("polyhead_time_to_first_token_seconds_count") == 2 * len(TEXTS)
        wish = {"seed": 5, "max_new_tokens": 30}
        short, long = (live.run.generate([text], **wish)[0] for text in TEXTS[:2])
        stop = next(c for c in short[1:] if c.isascii() and c not in long)
        # a clock that a step moves by a second
        monkeypatch.setattr(engine_thread, "time", SimpleNamespace(monotonic=lambda: float(len(steps))))
        true = engine.step
        monkeypatch.setattr(engine, "step", lambda: steps.append(1) or true())
        body = {"prompt": TEXTS[:2], "seed": 5, "max_tokens": 30, "stop": stop, "logprobs": 0}
        choices = live.ask("/v1/completions", body).json()["choices"]
        said = [len(choice["logprobs"]["tokens"]) for choice in choices]
        assert 1 < said[0] < said[1] - 9, "one ends long before the other"
        assert told(f"{about}_count") == 2 and told(f"{about}_sum") == 2


def test_prompts_of_token_ids_and_echo(speaker):
    ids = speaker.run.tokenizer.encode(TEXTS)
    by_text = speaker.ask("/v1/completions", {"prompt": TEXTS, "temperature": 0}).json()["choices"]
    assert speaker.ask("/v1/completions", {"prompt": ids, "temperature": 0}).json()["choices"] == by_text
    assert (
        speaker.ask("/v1/completions", {"prompt": ids[0], "temperature": 0}).json()["choices"] == by_text[:1]
    )
    echoed = speaker.ask("/v1/completions", {"prompt": TEXTS, "temperature": 0, "echo": True}).json()[
        "choices"
    ]
    assert [choice["text"] for choice in echoed] == [
        text + choice["text"] for text, choice in zip(TEXTS, by_text, strict=True)
    ]
    said = [""] * len(TEXTS)
    for event in speaker.events("/v1/completions", {"prompt": ids, "temperature": 0, "echo": True}):
        said[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert said == [choice["text"] for choice in echoed]


def test_the_log_probability_of_each_token(speaker):
    body = {"prompt": TEXTS[1], "seed": 2, "logprobs": 0}
    (choice,) = speaker.ask("/v1/completions", body).json()["choices"]
    stream = speaker.run.engine().submit(TEXTS[1], seed=2)
    stream.collect_texts()
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(stream.log_probs[0], abs=1e-5)
    assert choice["logprobs"]["tokens"] == [named(speaker.run.tokenizer, token) for token in stream.tokens[0]]
    events = speaker.events("/v1/completions", body)
    told = [event["choices"][0]["logprobs"] for event in events]
    assert [p for one in told for p in one["token_logprobs"]] == pytest.approx(stream.log_probs[0], abs=1e-5)
    too_many = speaker.ask("/v1/completions", {**body, "logprobs": 21})
    assert too_many.status_code == 400 and too_many.json()["error"]["param"] == "logprobs"


@pytest.mark.acceptance("C10")
def test_answers_are_strict_json_where_nothing_else_was_possible(speaker):
    body = {"prompt": TEXTS[1], "top_k": 1, "temperature": 1e-38, "logprobs": 0}
    text = speaker.ask("/v1/completions", body).text

    def refuse(name):
        raise AssertionError(name)

    json.loads(text, parse_constant=refuse)


@pytest.mark.acceptance("C8")
def test_a_stop_string_ends_the_text_and_never_leaks(speaker):
    (whole,) = speaker.run.generate([TEXTS[0]], seed=5, max_new_tokens=20)
    stop = whole[4:7]
    body = {"prompt": TEXTS[0], "seed": 5, "max_tokens": 20, "stop": [stop, "never said"]}
    (choice,) = speaker.ask("/v1/completions", body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    events = speaker.events("/v1/completions", body)
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("kind", "path", "text", "key"),
    [
        ("decoder", "/v1/completions", {"prompt": TEXTS[1]}, "choices"),
        ("encoder-decoder", "/v1/completions", {"prompt": TEXTS[1]}, "choices"),
        ("encoder-decoder", "/v1/translations", {"input": TEXTS[1]}, "data"),
    ],
)
def test_a_stop_string_ends_what_beams_found(services, kind, path, text, key):
    live, body = services[kind], {**text, "beam_size": 3, "max_tokens": 5}
    (whole,) = live.ask(path, body).json()[key]
    assert whole["finish_reason"] == "length"
    body["stop"] = stop = whole["text"][1:2]
    (cut,) = live.ask(path, body).json()[key]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"].partition(stop)[0], "stop")
    (event,) = live.events(path, body)
    assert (event[key][0]["text"], event[key][0]["finish_reason"]) == (cut["text"], "stop")


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_beside_beams_a_temperature_of_nothing_is_no_wish(services, kind):
    """Clients that ask for the likeliest text send it."""
    live, body = services[kind], {"prompt": TEXTS[1], "beam_size": 3, "max_tokens": 5}
    found, cold = (live.ask("/v1/completions", body | more).json() for more in ({}, {"temperature": 0}))
    assert cold["choices"] == found["choices"]
    warm = live.ask("/v1/completions", body | {"temperature": 0.5})
    assert (warm.status_code, warm.json()["error"]["param"]) == (
        400,
        "temperature" if kind == "decoder" else "beam_size",
    )


def test_without_a_seed_texts_differ_and_with_one_they_repeat(speaker):
    def said(**body):
        choices = speaker.ask("/v1/completions", {"prompt": ["dogs"] * 3, "max_tokens": 20, **body}).json()[
            "choices"
        ]
        return [choice["text"] for choice in choices]

    assert len(set(said())) == 3
    assert len({*said(seed=1), *said(seed=1)}) == 1


@pytest.mark.parametrize(
    "way", [{}, {"n": 2}, {"n": 2, "beam_size": 4, "length_penalty": 0.5}, {"min_tokens": 3}], ids=str
)
def test_translations_are_those_of_the_run_with_their_scores(translator, way):
    changes = {{"n": "n_best", "min_tokens": "min_new_tokens"}.get(k, k): v for k, v in way.items()}
    wanted = translator.run.hypotheses(TEXTS, **changes)
    answer = translator.ask("/v1/translations", {"input": TEXTS, **way}).json()
    for found, one in zip(wanted, answer["data"], strict=True):
        ways = [one, *one.get("alternatives", [])]
        plain = translator.run.tokenizer.decode([h.tokens for h in found])
        assert [w["text"] for w in ways] == [text.rstrip("\ufffd") for text in plain]
        assert [w["score"] for w in ways] == pytest.approx([h.score for h in found], abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == sum(
        len(ids) + 1 for ids in translator.run.tokenizer.encode(TEXTS)
    )
    events = translator.events("/v1/translations", {"input": TEXTS, **way})
    said = {(e["data"][0]["index"], e["data"][0]["alternative"]): e["data"][0]["text"] for e in events}
    assert [said[i, 0] for i in range(len(TEXTS))] == [one["text"] for one in answer["data"]]


def test_translations_have_the_terms_of_their_texts(translator):
    body = {"input": TEXTS, "terminology": {"hund": "dog", "Two dogs": ["zwei", "hunde"]}, "beam_size": 3}
    told = [one["text"] for one in translator.ask("/v1/translations", body).json()["data"]]
    assert told == translator.run.translate(TEXTS, terminology=body["terminology"], beam_size=3)
    plain = translator.run.translate(TEXTS, beam_size=3)
    assert [i for i, text in enumerate(told) if text != plain[i]] == [0, 3]
    assert "dog" in told[0] and ("zwei" in told[3] or "hunde" in told[3])
    (streamed,) = translator.events("/v1/translations", body | {"input": TEXTS[0]})
    assert streamed["data"][0]["text"] == told[0]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"terminology": ["dog"]}, 'is not an object such as {"dog": "Hund"}'),
        ({"terminology": {"hund": 3}}, "terminology: 3 is not a text or a list of texts"),
        ({"terminology": {"hund": [" "]}}, "terminology: 'hund': expected texts with words, got ' '"),
        (
            {"terminology": {"hund": "dog"}, "temperature": 1},
            "terminology is supported only for translations with beam search",
        ),
        (
            {"terminology": {"hund": "dogs " * 13}, "beam_size": 4},
            "terminology: the terms of a text require 17 hypotheses, one more for each of their tokens",
        ),
        (
            {"terminology": {"hund": "x" * 32768}},
            "terminology has a text of 32772 characters; the maximum is 32768",
        ),
    ],
)
def test_terms_that_cannot_be_met_are_refused(translator, wish, message):
    answer = translator.ask("/v1/translations", {"input": TEXTS, **wish})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"] and answer.json()["error"]["param"] == "terminology"


def test_drawn_translations_come_word_by_word(translator, slowly):
    """The first of them is there before all are made."""
    body = {"input": TEXTS[0], "temperature": 0}
    (wanted,) = translator.run.translate([TEXTS[0]], beam_size=1)
    assert translator.ask("/v1/translations", body).json()["data"][0]["text"] == wanted
    with (
        slowly(translator) as steps,
        translator.http.stream("POST", "/v1/translations", json={**body, "stream": True}) as answer,
    ):
        steps.let(4)
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        texts = [json.loads(next(lines)[6:])["data"][0]["text"]]
        steps.still()
        assert texts[0] and wanted.startswith(texts[0]) and texts[0] != wanted
        steps.let(10**4)
        texts += [json.loads(line[6:])["data"][0]["text"] for line in lines]
    assert "".join(texts) == wanted


def test_translations_tell_where_the_decoder_looked(translator):
    (told,) = translator.ask("/v1/translations", {"input": TEXTS[0], "return_attention": True}).json()["data"]
    source, target, weights = translator.run.cross_attention(TEXTS[0], told["text"])
    assert told["attention"]["source"] == source and told["attention"]["target"] == target
    assert told["attention"]["weights"] == (weights * 1000).round().int().tolist()
    assert told["attention"]["layers"] == [1]


def test_the_layers_of_an_attention_are_named_where_some_have_none(translator, monkeypatch):
    """As of a model of own parts, whose second layer does not attend to the source."""
    maps = translator.run.attention_maps

    def with_gap(*texts):
        found = maps(*texts)
        weights = found["cross"].weights
        return {"cross": found["cross"]._replace(weights=torch.cat([weights, weights]), layers=[1, 3])}

    monkeypatch.setattr(translator.run, "attention_maps", with_gap)
    (told,) = translator.ask("/v1/translations", {"input": TEXTS[0], "return_attention": True}).json()["data"]
    assert told["attention"]["layers"] == [1, 3] and len(told["attention"]["weights"]) == 2


def test_models_that_decide_together_translate_and_tell_no_attention(translator):
    """Their card says so, and the page asks only where it may; a request that does ask is refused before it
    is decoded.
    """
    assert translator.ask("/v1/models/tiny").json()["polyhead"]["attention"] is True
    run = ensemble_runs([translator.run, make("encoder-decoder", d_model=24)])
    with living(run) as live:
        assert live.ask("/v1/models/tiny").json()["polyhead"]["attention"] is False
        told = live.ask("/v1/translations", {"input": TEXTS, "return_attention": False}).json()["data"]
        assert [one["text"] for one in told] == run.translate(TEXTS) != translator.run.translate(TEXTS)
        refused = live.ask("/v1/translations", {"input": TEXTS, "return_attention": True})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "return_attention"
        assert "a single model, not for an ensemble of 2" in refused.json()["error"]["message"]


def test_an_encoder_decoder_completes_text_to_text(translator):
    wanted = translator.run.translate(TEXTS)
    answer = translator.ask("/v1/completions", {"prompt": TEXTS}).json()
    assert [choice["text"] for choice in answer["choices"]] == wanted
    short = translator.ask("/v1/completions", {"prompt": TEXTS[0], "max_tokens": 2, "temperature": 0}).json()
    assert short["usage"]["completion_tokens"] == 2 and short["choices"][0]["finish_reason"] == "length"


def test_what_asks_for_nothing_is_no_wish(services):
    """Clients send these with everything, with beams and to translators too."""
    nothing = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
    for kind in ("decoder", "encoder-decoder"):
        for way in ({"beam_size": 2}, {} if kind == "encoder-decoder" else {"seed": 1}):
            body = {"prompt": TEXTS[0], "max_tokens": 6, **way}
            answer = services[kind].ask("/v1/completions", {**body, **nothing})
            assert answer.status_code == 200 and "x-warnings" not in answer.headers
            wanted = services[kind].ask("/v1/completions", body).json()["choices"]
            assert answer.json()["choices"] == wanted


def test_a_request_may_put_off_the_penalties_of_the_run():
    made = make("decoder")
    own = {"frequency_penalty": 2.0, "logit_bias": {40: -100.0}}
    run = Run(made.model, made.tokenizer, made.generation.model_copy(update={**own, "temperature": 0.0}))
    with living(run) as live:
        for body, wanted in (
            ({}, run.generate(["dogs"])),
            ({"frequency_penalty": 0, "logit_bias": {}}, made.generate(["dogs"], temperature=0.0)),
            ({"frequency_penalty": None, "logit_bias": None}, run.generate(["dogs"])),
        ):
            answer = live.ask("/v1/completions", {"prompt": "dogs", **body}).json()
            assert [answer["choices"][0]["text"]] == wanted
    assert run.generate(["dogs"]) != made.generate(["dogs"], temperature=0.0)


def test_openais_own_client_understands_every_answer(services):
    speaker, encoder = services["decoder"], services["encoder"]
    client = openai.OpenAI(base_url=f"{speaker.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "polyhead"
    (wanted,) = speaker.run.generate(["dogs"], n=2, seed=3)
    whole = client.completions.create(
        model="tiny", prompt="dogs", n=2, seed=3, user="somebody", frequency_penalty=0
    )
    less = client.completions.create(
        model="tiny", prompt="dogs", seed=3, frequency_penalty=2, presence_penalty=1, logit_bias={"40": -100}
    )
    rule = {"frequency_penalty": 2, "presence_penalty": 1, "logit_bias": {40: -100}}
    assert [less.choices[0].text] == speaker.run.generate(["dogs"], seed=3, **rule) != wanted[:1]
    assert [choice.text for choice in whole.choices] == wanted and whole.usage.completion_tokens > 2
    said = ["", ""]
    for chunk in client.completions.create(
        model="tiny", prompt="dogs", n=2, seed=3, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            said[choice.index] += choice.text
    assert said == wanted and chunk.usage == whole.usage
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="dogs")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    assert refused.value.code == "model_not_chat"
    reader = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0)
    found = reader.embeddings.create(model="tiny", input=TEXTS)  # asks for base64 by itself
    for vector, wanted_vector in zip(found.data, encoder.run.embed(TEXTS).tolist(), strict=True):
        assert vector.embedding == pytest.approx(wanted_vector, abs=1e-6)


def test_a_special_token_in_a_prompt_is_text_or_with_parse_special_the_token(speaker):
    tokenizer = speaker.run.tokenizer
    (name,) = tokenizer.ids_to_tokens([tokenizer.eos_id])
    asked = {"prompt": ["a dog", f"a{name}dogs"], "temperature": 0, "max_tokens": 3, "n": 1}
    plain = speaker.ask("/v1/completions", asked)
    told = f"'{name}' in the prompt is text; parse_special: true makes it a special token"
    assert plain.headers["x-warnings"] == told
    parsed = speaker.ask("/v1/completions", asked | {"parse_special": True})
    assert "x-warnings" not in parsed.headers
    ids = [*tokenizer.encode(["a"])[0], tokenizer.eos_id, *tokenizer.encode(["dogs"])[0]]
    own = speaker.ask("/v1/completions", asked | {"prompt": ids}).json()
    assert parsed.json()["choices"][1]["text"] == own["choices"][0]["text"]
    usage = [answer.json()["usage"]["prompt_tokens"] for answer in (plain, parsed)]
    assert usage[1] < usage[0] and own["usage"]["prompt_tokens"] == len(ids)
    honest = speaker.ask("/v1/completions", asked | {"prompt": "a dog"})
    assert "x-warnings" not in honest.headers


def test_parse_special_is_for_language_models(translator):
    answer = translator.ask("/v1/completions", {"prompt": "a", "parse_special": True})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "parse_special"
