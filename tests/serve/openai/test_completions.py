"""Completions and translations over HTTP equal those of the run, as one answer and as a stream."""

import json
from types import SimpleNamespace

import openai
import pytest
import torch
from tests.serve.conftest import TEXTS, build_run, get_error, serve_run, with_generation

from polyhead import Choice
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve import engine_thread
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PATH, TRANSLATE = "/v1/completions", "/v1/translations"
OPTIONS = [{"temperature": 0}, {"seed": 3}, {"n": 3, "seed": 4, "top_k": 20}, {"n": 2, "beam_size": 4}]
OPTIONS += [{"max_tokens": 1, "temperature": 0}]
OPTIONS += [{"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5}]
OPTIONS += [{"seed": 5, "n": 2, "presence_penalty": -2, "logit_bias": {"40": 4, "41": -100}}]


def to_run(options):
    """The options of a request as the run names them."""
    return {"n": 1} | {{"max_tokens": "max_new_tokens"}.get(k, k): value for k, value in options.items()}


def read_texts(answer):
    return [choice["text"] for choice in answer.json()["choices"]]


@pytest.mark.acceptance("C7")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_answers_equal_the_run_and_their_streams(client, options):
    for text in TEXTS[::2]:
        (expected,) = client.run.generate([text], **to_run(options))
        answer = client.ask(PATH, {"model": "tiny", "prompt": text, **options})
        assert read_texts(answer) == expected
        assert (answer.json()["object"], answer.json()["model"]) == ("text_completion", "tiny")
    body = {"prompt": TEXTS, **options}
    answer = client.ask(PATH, body).json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(TEXTS) * options.get("n", 1)))
    *events, last = client.stream(PATH, {**body, "stream_options": {"include_usage": True}})
    texts, reasons = [""] * len(choices), [None] * len(choices)
    for event in events:
        assert event["usage"] is None
        (choice,) = event["choices"]
        assert reasons[choice["index"]] is None, "text after the end"
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in choices]
    assert reasons == [choice["finish_reason"] for choice in choices] and {*reasons} <= {"stop", "length"}
    details = {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}  # with cached tokens by now
    assert last["choices"] == [] and last["usage"] == answer["usage"] | details


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_usage_counts_unknown_tokens(kind):
    tokenizer = train_tokenizer(TEXTS, Choice("char"), 300)
    run = Run(build_run(kind).model, tokenizer, GenerationConfig(max_new_tokens=4, max_length_ratio=1.0))
    body = {"prompt": "dogs", "temperature": 0, "max_tokens": 4, "stream_options": {"include_usage": True}}
    for bias, details in ((100, {"unknown_tokens": 4}), (-100, None)):
        body["logit_bias"] = {str(tokenizer.unknown_id): bias}
        with serve_run(run) as client:
            usages = client.ask(PATH, body).json()["usage"], client.stream(PATH, body)[-1]["usage"]
        assert [usage.get("completion_tokens_details") for usage in usages] == [details] * 2


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"n": 3, "seed": 4}, {"n": 2, "beam_size": 4}], ids=str
)
def test_stop_tokens_of_the_run_end_completions(options):
    """The end is the third token of the output without it."""
    run, text = build_run("decoder"), TEXTS[0]
    output = run.engine().submit(text, **to_run(options))
    without_end, end = output.collect_texts(), output.tokens[0][2]
    run = with_generation(run, stop_tokens=tuple(run.tokenizer.ids_to_tokens([end])))
    with serve_run(run) as client:
        choices = client.ask(PATH, {"prompt": text, **options}).json()["choices"]
    texts = [choice["text"] for choice in choices]
    assert [texts] == run.generate([text], **to_run(options)) != [without_end]
    if "beam_size" not in options:
        assert choices[0]["finish_reason"] == "stop"
        assert without_end[0].startswith(texts[0]) and len(texts[0]) < len(without_end[0])


def test_usage_counts_prompt_and_output_tokens(client):
    prompt = client.run.prompt_template.build_prompt(client.run.tokenizer.encode([TEXTS[1]])[0])
    (result,) = client.run.engine().submit(TEXTS[1], seed=1, max_new_tokens=7).request.result()
    answer = client.ask(PATH, {"prompt": TEXTS[1], "seed": 1, "max_tokens": 7}).json()
    details = answer["usage"].pop("prompt_tokens_details")
    assert details.keys() == {"cached_tokens"} and details["cached_tokens"] < len(prompt)
    n = len(result.tokens) + (answer["choices"][0]["finish_reason"] == "stop")
    expected = {"prompt_tokens": len(prompt), "completion_tokens": n, "total_tokens": len(prompt) + n}
    assert answer["usage"] == expected
    body = {"prompt": ["dogs"] * 3, "max_tokens": 20}
    for fields, n_texts in (({}, 3), ({"seed": 1}, 1)):  # texts repeat with a seed only
        assert len({*read_texts(client.ask(PATH, body | fields))}) == n_texts


def test_time_per_token_is_between_tokens_of_text(runs, monkeypatch):
    name, steps = "polyhead_time_per_output_token_seconds", []
    with serve_run(runs["decoder"]) as client:
        sample, engine = client.service.metrics.registry.get_sample_value, client.service.engine.engine
        for options in ({"beam_size": 4}, {"max_tokens": 1}):  # without two tokens of one text
            assert client.ask(PATH, {"prompt": TEXTS, "n": 2, **options}).status_code == 200
        assert sample(f"{name}_count") == 0
        assert sample("polyhead_time_to_first_token_seconds_count") == 2 * len(TEXTS)
        short, long = (client.run.generate([text], seed=5, max_new_tokens=30)[0] for text in TEXTS[:2])
        stop = next(c for c in short[1:] if c.isascii() and c not in long)
        # a clock that each step advances by a second
        monkeypatch.setattr(engine_thread, "time", SimpleNamespace(monotonic=lambda: float(len(steps))))
        step = engine.step
        monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
        body = {"prompt": TEXTS[:2], "seed": 5, "max_tokens": 30, "stop": stop, "logprobs": 0}
        lengths = [len(c["logprobs"]["tokens"]) for c in client.ask(PATH, body).json()["choices"]]
        assert 1 < lengths[0] < lengths[1] - 9, "one ends long before the other"
        assert sample(f"{name}_count") == sample(f"{name}_sum") == 2


def test_prompt_may_be_token_ids_and_be_echoed(client):
    ids = client.run.tokenizer.encode(TEXTS)
    texts = read_texts(client.ask(PATH, {"prompt": TEXTS, "temperature": 0}))
    echoed_texts = [prompt + text for prompt, text in zip(TEXTS, texts, strict=True)]
    cases = [(ids, False, texts), (ids[0], False, texts[:1]), (TEXTS, True, echoed_texts)]
    for prompt, echo, expected in (*cases, (ids, True, echoed_texts)):
        body = {"prompt": prompt, "temperature": 0, "echo": echo}
        assert read_texts(client.ask(PATH, body)) == expected
        stream_result = [""] * len(expected)
        for event in client.stream(PATH, body):
            stream_result[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert stream_result == expected


@pytest.mark.acceptance("C8")
def test_stop_string_ends_the_text_before_itself(client):
    (text,) = client.run.generate([TEXTS[0]], seed=5, max_new_tokens=20)
    stop = text[4:7]
    body = {"prompt": TEXTS[0], "seed": 5, "max_tokens": 20, "stop": [stop, "never said"]}
    (choice,) = client.ask(PATH, body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    events = client.stream(PATH, body)
    assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("kind", "path", "prompt", "key"),
    [
        ("decoder", PATH, {"prompt": TEXTS[1]}, "choices"),
        ("encoder-decoder", PATH, {"prompt": TEXTS[1]}, "choices"),
        ("encoder-decoder", TRANSLATE, {"input": TEXTS[1]}, "data"),
    ],
)
def test_stop_string_ends_the_text_of_beams(clients, kind, path, prompt, key):
    client, body = clients[kind], {**prompt, "beam_size": 3, "max_tokens": 5}
    (choice,) = client.ask(path, body).json()[key]
    assert choice["finish_reason"] == "length"
    body["stop"] = stop = choice["text"][1:2]
    expected = (choice["text"].partition(stop)[0], "stop")
    (choice,) = client.ask(path, body).json()[key]
    (event,) = client.stream(path, body)
    for result in (choice, event[key][0]):
        assert (result["text"], result["finish_reason"]) == expected


@pytest.mark.parametrize(("kind", "param"), [("decoder", "temperature"), ("encoder-decoder", "beam_size")])
def test_temperature_zero_with_beams_is_ignored(clients, kind, param):
    """Clients that want the most probable text send it."""
    client, body = clients[kind], {"prompt": TEXTS[1], "beam_size": 3, "max_tokens": 5}
    assert read_texts(client.ask(PATH, body | {"temperature": 0})) == read_texts(client.ask(PATH, body))
    assert get_error(client.ask(PATH, body | {"temperature": 0.5}))["param"] == param


@pytest.mark.parametrize(
    "options", [{}, {"n": 2}, {"n": 2, "beam_size": 4, "length_penalty": 0.5}, {"min_tokens": 3}], ids=str
)
def test_translations_and_scores_equal_those_of_the_run(translator, options):
    run = translator.run
    run_options = {{"n": "n_best", "min_tokens": "min_new_tokens"}.get(k, k): v for k, v in options.items()}
    answer = translator.ask(TRANSLATE, {"input": TEXTS, **options}).json()
    for hypotheses, data in zip(run.hypotheses(TEXTS, **run_options), answer["data"], strict=True):
        outputs = [data, *data.get("alternatives", [])]
        texts = run.tokenizer.decode([h.tokens for h in hypotheses])
        assert [output["text"] for output in outputs] == [text.rstrip("\ufffd") for text in texts]
        scores = pytest.approx([h.score for h in hypotheses], abs=1e-5)
        assert [output["score"] for output in outputs] == scores
    assert answer["usage"]["prompt_tokens"] == sum(len(ids) + 1 for ids in run.tokenizer.encode(TEXTS))
    parts = [event["data"][0] for event in translator.stream(TRANSLATE, {"input": TEXTS, **options})]
    stream_result = {(part["index"], part["alternative"]): part["text"] for part in parts}
    assert [stream_result[i, 0] for i in range(len(TEXTS))] == [data["text"] for data in answer["data"]]


def test_translations_use_the_terminology(translator):
    terms = {"hund": "dog", "Two dogs": ["zwei", "hunde"]}
    body = {"input": TEXTS, "terminology": terms, "beam_size": 3}
    texts = [data["text"] for data in translator.ask(TRANSLATE, body).json()["data"]]
    assert texts == translator.run.translate(TEXTS, terminology=terms, beam_size=3)
    without_terms = translator.run.translate(TEXTS, beam_size=3)
    assert [i for i, text in enumerate(texts) if text != without_terms[i]] == [0, 3]
    assert "dog" in texts[0] and ("zwei" in texts[3] or "hunde" in texts[3])
    (event,) = translator.stream(TRANSLATE, body | {"input": TEXTS[0]})
    assert event["data"][0]["text"] == texts[0]


def test_sampled_translation_is_streamed_while_it_is_decoded(translator):
    body = {"input": TEXTS[0], "temperature": 0}
    (expected,) = translator.run.translate([TEXTS[0]], beam_size=1)
    assert translator.ask(TRANSLATE, body).json()["data"][0]["text"] == expected
    with (
        translator.hold_steps() as steps,
        translator.http.stream("POST", TRANSLATE, json={**body, "stream": True}) as answer,
    ):
        steps.allow(4)
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        texts = [json.loads(next(lines)[6:])["data"][0]["text"]]
        steps.wait_blocked()
        assert texts[0] and expected.startswith(texts[0]) and texts[0] != expected
        steps.allow(10**4)
        texts += [json.loads(line[6:])["data"][0]["text"] for line in lines]
    assert "".join(texts) == expected


def test_attention_of_translation_is_that_of_the_run(translator, monkeypatch):
    body = {"input": TEXTS[0], "return_attention": True}
    (data,) = translator.ask(TRANSLATE, body).json()["data"]
    source, target, weights = translator.run.cross_attention(TEXTS[0], data["text"])
    expected = (weights * 1000).round().int().tolist()
    assert data["attention"] == {"source": source, "target": target, "weights": expected, "layers": [1]}
    get_maps = translator.run.attention_maps

    def with_gap(*texts):
        """As of a model whose second layer has no cross-attention."""
        cross = get_maps(*texts)["cross"]
        return {"cross": cross._replace(weights=torch.cat([cross.weights] * 2), layers=[1, 3])}

    monkeypatch.setattr(translator.run, "attention_maps", with_gap)
    (data,) = translator.ask(TRANSLATE, body).json()["data"]
    assert data["attention"]["layers"] == [1, 3] and len(data["attention"]["weights"]) == 2


def test_alignments_and_probabilities_are_those_of_the_run(translator):
    body = {"input": TEXTS, "n": 2, "beam_size": 3, "return_alignments": True, "return_token_scores": True}
    data = translator.ask(TRANSLATE, body).json()["data"]
    rows = translator.run.hypotheses(TEXTS, n_best=2, beam_size=3)
    for source, one, hypotheses in zip(TEXTS, data, rows, strict=True):
        for output, best in zip([one, *one["alternatives"]], hypotheses, strict=True):
            (reading,) = translator.run.align_pairs([source], [output["text"]])
            assert output["confidence"] == pytest.approx(best.confidence, rel=1e-4)
            if translator.run.tokenizer.encode([output["text"]])[0] != best.tokens:
                continue  # other tokens of the same text
            assert output["alignment"] == [[*pair] for pair in reading.alignment]
            log_probs = [token["logprob"] for token in output["tokens"]]
            assert log_probs == pytest.approx(reading.log_probs, abs=1e-3)
    (plain, *_) = translator.ask(TRANSLATE, {"input": TEXTS}).json()["data"]
    assert plain.keys() == {"index", "text", "score", "confidence", "finish_reason"}
    error = get_error(translator.ask(TRANSLATE, {**body, "stream": True}))
    assert error["param"] == "return_alignments" and "stream" in error["message"]


def test_documents_are_those_of_the_run(translator, monkeypatch):
    page = "<p>Two <b>dogs</b> bark.  A dog <code>sits</code>.</p><p>12</p>\n"
    texts = [page, "", "<pre>A dog</pre>"]
    expected = [translator.run.translate_document(text, "html", beam_size=2) for text in texts]
    body = {"input": texts, "format": "html", "beam_size": 2}
    for max_batch in (translator.service.limits.max_batch, 3):
        limits = translator.service.limits.model_copy(update={"max_batch": max_batch})
        monkeypatch.setattr(translator.service, "limits", limits)
        answer = translator.ask(TRANSLATE, body).json()
        assert [one["text"] for one in answer["data"]] == expected and expected[0] != page
        assert answer["usage"]["completion_tokens"] > 0
    for field, value in (("n", 2), ("stream", True), ("return_alignments", True)):
        error = get_error(translator.ask(TRANSLATE, body | {field: value}))
        assert error["param"] == field and "format" in error["message"]
    error = get_error(translator.ask(TRANSLATE, {"input": "<xliff", "format": "xliff"}))
    assert error["param"] == "input" and "not well-formed" in error["message"]


def test_ensemble_translates_without_attention(translator):
    assert translator.ask("/v1/models/tiny").json()["polyhead"]["attention"] is True
    run = ensemble_runs([translator.run, build_run("encoder-decoder", d_model=24)])
    with serve_run(run) as client:
        assert client.ask("/v1/models/tiny").json()["polyhead"]["attention"] is False
        data = client.ask(TRANSLATE, {"input": TEXTS, "return_attention": False}).json()["data"]
        assert [one["text"] for one in data] == run.translate(TEXTS) != translator.run.translate(TEXTS)
        error = get_error(client.ask(TRANSLATE, {"input": TEXTS, "return_attention": True}))
        assert error["param"] == "return_attention"
        assert "a single model, not for an ensemble of 2" in error["message"]


def test_encoder_decoder_completes_text_to_text(translator):
    assert read_texts(translator.ask(PATH, {"prompt": TEXTS})) == translator.run.translate(TEXTS)
    answer = translator.ask(PATH, {"prompt": TEXTS[0], "max_tokens": 2, "temperature": 0}).json()
    assert answer["usage"]["completion_tokens"] == 2 and answer["choices"][0]["finish_reason"] == "length"


def test_request_may_disable_the_penalties_of_the_run():
    run = with_generation(build_run("decoder"), temperature=0.0)
    penalized_run = with_generation(run, frequency_penalty=2.0, logit_bias={40: -100.0})
    with serve_run(penalized_run) as client:
        for fields, expected in (
            ({}, penalized_run.generate(["dogs"])),
            ({"frequency_penalty": 0, "logit_bias": {}}, run.generate(["dogs"])),
            ({"frequency_penalty": None, "logit_bias": None}, penalized_run.generate(["dogs"])),
        ):
            assert read_texts(client.ask(PATH, {"prompt": "dogs", **fields})) == expected
    assert penalized_run.generate(["dogs"]) != run.generate(["dogs"])


def test_openai_client_reads_answers_and_errors(client):
    openai_client = client.openai()
    create = openai_client.completions.create
    assert [model.id for model in openai_client.models.list()] == ["tiny"]
    assert openai_client.models.retrieve("tiny").owned_by == "polyhead"
    options = {"model": "tiny", "prompt": "dogs", "seed": 3, "logit_bias": {"40": -100}, "n": 2}
    (expected,) = client.run.generate(["dogs"], n=2, seed=3, logit_bias={40: -100})
    answer = create(**options, user="somebody", frequency_penalty=0)
    assert [choice.text for choice in answer.choices] == expected and answer.usage.completion_tokens > 2
    chunks = list(create(**options, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.text
    assert texts == expected and chunks[-1].usage == answer.usage
    with pytest.raises(openai.NotFoundError) as error:
        create(model="gpt-4", prompt="dogs")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as error:
        openai_client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    assert error.value.code == "model_not_chat"


def test_parse_special_reads_special_tokens_of_the_prompt(client):
    tokenizer = client.run.tokenizer
    (name,) = tokenizer.ids_to_tokens([tokenizer.eos_id])
    body = {"prompt": ["a dog", f"a{name}dogs"], "temperature": 0, "max_tokens": 3, "n": 1}
    as_text = client.ask(PATH, body)
    warning = f"'{name}' in the prompt is text; parse_special: true makes it a special token"
    assert as_text.headers["x-warnings"] == warning
    parsed_answer = client.ask(PATH, body | {"parse_special": True})
    ids = [*tokenizer.encode(["a"])[0], tokenizer.eos_id, *tokenizer.encode(["dogs"])[0]]
    by_ids = client.ask(PATH, body | {"prompt": ids})
    assert read_texts(parsed_answer)[1] == read_texts(by_ids)[0]
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in (as_text, parsed_answer, by_ids)]
    assert counts[1] < counts[0] and counts[2] == len(ids)
    for answer in (parsed_answer, client.ask(PATH, body | {"prompt": "a dog"})):
        assert "x-warnings" not in answer.headers
