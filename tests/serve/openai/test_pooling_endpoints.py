"""Vectors, classes, hidden words, likelihoods and tokens are those of the run; what does not fit is refused,
not cut.
"""

from __future__ import annotations

import base64
import threading

import numpy as np
import openai
import pytest
import torch
from tests.serve.conftest import living, make

from polyhead.config.recipe import Recipe
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve.http.limits import Limits

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs", ""]
LONG = "dogs bark " * 60


@pytest.mark.parametrize("pooling", ["mean", "first", "max", "last"])
def test_embeddings(services, pooling):
    for kind in ("encoder", "classifier", "decoder"):
        live = services[kind]
        wanted = live.run.embed(TEXTS, pooling=pooling).numpy()
        answer = live.ask("/v1/embeddings", {"input": TEXTS, "pooling": pooling, "dimensions": 16}).json()
        assert [one["index"] for one in answer["data"]] == list(range(len(TEXTS)))
        np.testing.assert_allclose([one["embedding"] for one in answer["data"]], wanted, atol=1e-6)
        packed = live.ask(
            "/v1/embeddings", {"input": TEXTS, "pooling": pooling, "encoding_format": "base64"}
        ).json()
        found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        special = 1 if kind == "decoder" else 2
        assert answer["usage"]["prompt_tokens"] == sum(
            len(ids) + special for ids in live.run.tokenizer.encode(TEXTS)
        )


@pytest.mark.parametrize("layers", [None, "all", [-1, 0]])
def test_embeddings_of_tokens_and_layers(services, layers):
    texts, fields = TEXTS[:-1], {} if layers is None else {"layers": layers}
    for kind in ("encoder", "decoder"):
        live = services[kind]
        n = live.run.config.n_layers
        numbers = {"None": None, "all": list(range(n + 1))}.get(str(layers), [n, 0])
        wanted = live.run.embed_tokens(texts, layers=layers)
        for form in ("float", "base64"):
            body = {"input": texts, "tokens": True, "encoding_format": form}
            answer = live.ask("/v1/embeddings", body | fields).json()
            for one, same in zip(answer["data"], wanted, strict=True):
                found = one["embedding"]
                found = found if form == "float" else np.frombuffer(base64.b64decode(found), "<f4")
                assert one["shape"] == list(same.vectors.shape) and one["tokens"] == same.tokens
                assert one.get("layers") == numbers
                np.testing.assert_allclose(np.reshape(found, one["shape"]), same.vectors, atol=1e-6)
        if layers is not None:
            pooled = live.run.embed(texts, layers=layers, pooling="max", normalize=True)
            body = {"input": texts, "pooling": "max", "normalize": True} | fields
            answer = live.ask("/v1/embeddings", body).json()
            np.testing.assert_allclose([one["embedding"] for one in answer["data"]], pooled, atol=1e-6)
            assert all(one["layers"] == numbers and "tokens" not in one for one in answer["data"])


def test_openai_s_client_reads_the_vectors_of_tokens(services):
    live = services["encoder"]
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="tiny", input=["a dog"], extra_body={"tokens": True})
    (wanted,) = live.run.embed_tokens(["a dog"])
    found = np.reshape(answer.data[0].embedding, answer.data[0].shape)
    np.testing.assert_allclose(found, wanted.vectors, atol=1e-6)


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize("tokens", [True, False])
def test_vectors_of_tokens_and_layers_are_shortened_alike(services, tokens, normalize):
    live, fields = services["encoder"], {} if normalize is None else {"normalize": normalize}
    body = {"input": ["dogs bark"], "tokens": tokens, "layers": [0, -1], "dimensions": 5} | fields
    found = np.array(live.ask("/v1/embeddings", body).json()["data"][0]["embedding"])
    run = live.run
    whole = run.embed_tokens if tokens else run.embed
    (one,) = whole(["dogs bark"], layers=[0, -1], **fields)
    wanted = (one.vectors if tokens else one).numpy()[..., :5]
    is_normalized = normalize if normalize is not None else run.generation.normalize and not tokens
    if is_normalized:
        wanted = wanted / np.linalg.norm(wanted, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"layers": [9]}, "layers", "layers: no layer 9; this model has 0 (its embeddings) to "),
        ({"layers": []}, "layers", 'layers: [] is not a list of layer numbers such as [0, -1], or "all"'),
        ({"layers": "first"}, "layers", "layers: 'first' is not a list of layer numbers"),
        ({"layers": [0.5]}, "layers", "layers: [0.5] is not a list of layer numbers"),
        (
            {"tokens": True, "pooling": "mean"},
            "pooling",
            "pooling makes one vector of a text; tokens returns",
        ),
    ],
)
def test_layers_that_a_model_lacks_are_refused(services, fields, param, said):
    answer = services["encoder"].ask("/v1/embeddings", {"input": "a dog", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(said)


def test_as_many_vectors_as_texts_are_returned_at_most(serving):
    run, texts = make("encoder"), ["dogs bark", "dogs"]
    count = sum(len(one.tokens) for one in run.embed_tokens(texts))
    with serving(run, limits=Limits(max_embeddings=count)) as live:
        assert live.ask("/v1/embeddings", {"input": texts, "tokens": True}).status_code == 200
        body = {"input": texts, "tokens": True, "layers": [0, 1]}
        error = live.ask("/v1/embeddings", body).json()["error"]
        said = f"{2 * count} vectors; the maximum is {count}"
        assert error["code"] == "answer_too_long" and said in error["message"]


def naive(run, rows):
    """The mean of the vectors that the encoder makes of each row, read alone."""
    with torch.inference_mode():
        return [run.model.encoder(torch.tensor([row]))[0].double().mean(0).tolist() for row in rows]


def test_embeddings_of_token_ids(services):
    for kind in ("encoder", "classifier", "decoder"):
        live, run = services[kind], services[kind].run
        t, texts = run.tokenizer, TEXTS[:-1]
        ids = t.encode(texts)
        odd = [t.unk_id, 17, 17, t.vocab_size - 1]  # that no text gives
        around = ([], [t.eos_id]) if kind == "decoder" else ([t.bos_id], [t.eos_id])
        for given, wanted in (
            (ids, ids), (ids[0], ids[:1]), ([ids[1]], ids[1:2]), (odd, [odd]), ([odd, ids[2]], [odd, ids[2]]),
        ):  # fmt: skip
            body = {"input": given, "pooling": "mean"}
            answer = live.ask("/v1/embeddings", body).json()
            rows = [[*around[0], *row, *around[1]] for row in wanted]
            found = [one["embedding"] for one in answer["data"]]
            np.testing.assert_allclose(found, naive(run, rows), atol=1e-5)
            tokens = sum(map(len, rows))
            assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        as_texts = live.ask("/v1/embeddings", {"input": texts}).json()
        assert live.ask("/v1/embeddings", {"input": ids}).json()["usage"] == as_texts["usage"]
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    found = client.embeddings.create(model="tiny", input=ids).data
    for vector, wanted in zip(found, naive(run, [[*row, t.eos_id] for row in ids]), strict=True):
        assert vector.embedding == pytest.approx(wanted, abs=1e-5)


def test_token_ids_stand_behind_a_prompt_and_are_bounded_as_texts_are(serving):
    run = make("encoder")
    run.generation = run.generation.model_copy(update={"embed_max_len": 12, "include_prompt": False})
    t, path = run.tokenizer, "/v1/embeddings"
    ids, before = t.encode(["two dogs bark"])[0], t.encode(["dogs: "])[0]
    with serving(run, limits=Limits(max_chars=40, max_batch=2, max_embeddings=3)) as live:
        (told,) = live.ask(path, {"input": ids, "prompt": "dogs: ", "truncate": True}).json()["data"]
        row = [*[t.bos_id, *before, *ids][:11], t.eos_id]
        with torch.inference_mode():
            wanted = run.model.encoder(torch.tensor([row]))[0, 1 + len(before) :].mean(0)
        assert told["embedding"] == pytest.approx(wanted.tolist(), abs=1e-5)
        assert live.ask(path, {"input": [5] * 10}).json()["usage"]["prompt_tokens"] == 12
        most = t.vocab_size - 1
        for given, code, said in (
            ([5] * 11, "context_length_exceeded", "text 1 has more tokens than the model's maximum (12"),
            ([[5], [5] * 11], "context_length_exceeded", "text 2 has more tokens than the model's maximum "
                "(12"),
            ([5] * 41, "text_too_long", "input has a text of 41 tokens; the maximum is 40"),
            ([[5]] * 4, "too_many_texts", "input has 4 texts; the maximum is 3"),
            ([5, most + 1], "invalid_value", f"input: no token {most + 1}; the vocabulary has 0 to {most}"),
            ([[5], [-1]], "invalid_value", "input: no token -1"),
            ([], "invalid_value", "is not a text, a list of texts, a list of token ids"),
            ([[]], "invalid_value", "is not a text"), ([1.5], "invalid_value", "is not a text"),
            ([True], "invalid_value", "is not a text"), ([[[5]]], "invalid_value", "is not a text"),
        ):  # fmt: skip
            answer = live.ask(path, {"input": given})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, code, "input"), given
            assert said in error["message"]
        cut = live.ask(path, {"input": [*[5] * 10, 9, 9], "truncate": True}).json()
        plain = live.ask(path, {"input": [5] * 10}).json()
        assert cut["usage"]["prompt_tokens"] == 12 and cut["data"] == plain["data"]


def test_embeddings_of_a_long_list_are_computed_in_parts(serving, monkeypatch):
    """Each vector is that of its text alone; no call of the model has more texts than others may send."""
    run, sizes = make("encoder"), []
    embed = run.embed
    monkeypatch.setattr(run, "embed", lambda texts, **ways: sizes.append(len(texts)) or embed(texts, **ways))
    texts = [f"{'dogs ' * (i % 7)}{i}" for i in range(2048)]
    with serving(run) as live:
        answer = live.ask("/v1/embeddings", {"input": texts}).json()
        assert sizes == [32] * 64 and [one["index"] for one in answer["data"]] == list(range(2048))
        for i in (0, 31, 32, 1000, 2047):
            (alone,) = live.ask("/v1/embeddings", {"input": texts[i]}).json()["data"]
            assert answer["data"][i]["embedding"] == pytest.approx(alone["embedding"], abs=1e-5)
        error = live.ask("/v1/embeddings", {"input": [*texts, "a"]}).json()["error"]
        assert (error["code"], error["param"]) == ("too_many_texts", "input")
        assert "the maximum is 2048" in error["message"]
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
        found = client.embeddings.create(model="tiny", input=texts[:100]).data
        assert found[99].embedding == pytest.approx(answer["data"][99]["embedding"], abs=1e-5)


def test_embeddings_behind_a_prompt_and_as_far_as_texts_are_read(serving):
    run = make("encoder")
    own = {"embed_prompts": {"query": "two dogs: ", "page": ""}, "embed_prompt": "query", "embed_max_len": 12}
    run.generation = run.generation.model_copy(update=own)
    with serving(run) as live:
        told = live.ask("/v1/models").json()["data"][0]["polyhead"]
        assert (told["prompts"], told["prompt"]) == (own["embed_prompts"], own["embed_prompt"])
        for body, before in (
            ({}, "two dogs: "),
            ({"prompt": "page"}, ""),
            ({"prompt": ""}, ""),
            ({"prompt": None}, "two dogs: "),  # as not given
            ({"prompt": "a ."}, "a ."),
        ):
            answer = live.ask("/v1/embeddings", {"input": TEXTS[:2], "truncate": True, **body}).json()
            wanted = run.embed([before + text for text in TEXTS[:2]], embed_prompt="")
            found = [one["embedding"] for one in answer["data"]]
            np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)
            lengths = [min(12, len(ids) + 2) for ids in run.tokenizer.encode([before + t for t in TEXTS[:2]])]
            assert answer["usage"]["prompt_tokens"] == sum(lengths)
        for body, said in (
            (
                {"input": "dogs bark " * 8},
                "text 1 has more tokens than the model's maximum (12, including special tokens)",
            ),
            ({"input": "dogs", "prompt": "pagge"}, "unknown prompt 'pagge'; did you mean 'page'?"),
        ):
            refused = live.ask("/v1/embeddings", body)
            assert refused.status_code == 400 and said in refused.json()["error"]["message"]


def test_classes_of_texts_and_of_pairs(services):
    live, pairs = services["classifier"], [["a dog barks .", "dogs"], ["dogs", "zwei hunde"]]
    for given in (TEXTS, pairs, TEXTS[0]):
        asked = (
            [given]
            if isinstance(given, str)
            else [tuple(one) if isinstance(one, list) else one for one in given]
        )
        answer = live.ask("/v1/classify", {"input": given}).json()
        for one, wanted in zip(answer["data"], live.run.classify(asked), strict=True):
            assert one["label"] == wanted.label and one["scores"] == pytest.approx(wanted.probabilities)
            assert one["score"] == one["scores"][one["label"]]


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        (
            ["text"],
            [["a dog", "dogs"]],
            "pairs of texts; expected a text or a list of texts, as in the run's training",
        ),
        (
            ["a", "b"],
            "a dog",
            'single texts; expected a list of pairs, ["a", "b"], as in the run\'s training',
        ),
    ],
)
def test_a_classifier_reads_as_many_texts_as_it_learned_from(columns, given, said):
    run = make("classifier")
    run.recipe = Recipe.model_validate(
        {
            "task": "classification",
            "data": {"train": ["a.tsv"], "valid": ["a.tsv"], "text": columns},
            "train": {"steps": 1},
        }
    )
    with living(run) as live:
        refused = live.ask("/v1/classify", {"input": given})
        assert refused.status_code == 400
        assert refused.json()["error"] == {
            "message": said,
            "type": "invalid_request_error",
            "param": "input",
            "code": "invalid_value",
        }
        right = "a dog" if len(columns) == 1 else [["a dog", "dogs"]]
        assert live.ask("/v1/classify", {"input": right}).status_code == 200


def test_classifiers_that_decide_together():
    """They have no vectors in common."""
    each = [make("classifier"), make("classifier", d_model=24, n_heads=3)]
    with living(ensemble_runs(each)) as live:
        answer = live.ask("/v1/classify", {"input": TEXTS}).json()
        for i, one in enumerate(answer["data"]):
            a, b = (run.classify(TEXTS)[i].probabilities for run in each)
            assert one["scores"] == pytest.approx({label: (a[label] + b[label]) / 2 for label in a})
        refused = live.ask("/v1/embeddings", {"input": "dogs"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "wrong_task")


def test_hidden_words(services):
    live, texts = services["encoder"], ["a <mask> barks .", "[MASK] dogs <mask>"]
    answer = live.ask("/v1/fill-mask", {"input": texts, "top_k": 3}).json()
    for one, masks in zip(answer["data"], live.run.fill_mask(texts, 3), strict=True):
        for told, fills in zip(one["masks"], masks, strict=True):
            assert [(t["token_str"], t["sequence"]) for t in told] == [(f.token, f.text) for f in fills]
            assert [t["score"] for t in told] == pytest.approx([f.probability for f in fills])
    missing = live.ask("/v1/fill-mask", {"input": ["a <mask>", "no hole"]})
    assert missing.status_code == 400 and "text 2 has no mask" in missing.json()["error"]["message"]


@pytest.mark.acceptance("E12", "E6")
def test_masks_whose_answer_would_be_their_square_are_refused_unread(services, serving, monkeypatch):
    """An answer holds the whole text for each token behind each mask: 32 texts of 4,000 masks would be
    gigabytes.
    """
    live, read = services["encoder"], []
    monkeypatch.setattr(live.run, "fill_mask", lambda *_: read.append(1))
    refused = live.ask("/v1/fill-mask", {"input": ["<mask>[MASK]" * 300] * 2, "top_k": 50})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "answer_too_long"
    told = 50 * 1200 * 300 * 12
    assert f"1200 masks with 50 tokens each would take {told:,}" in refused.json()["error"]["message"]
    assert not read
    monkeypatch.undo()
    with serving(live.run, limits=Limits(max_body=5 * 2 * 13)) as small:
        for text, code in (("a <mask> <mask>", 400), ("a<mask><mask> ", 400), ("a<mask><mask>", 200)):
            assert small.ask("/v1/fill-mask", {"input": text}).status_code == code, text


def test_likelihoods(services):
    speaker, translator = services["decoder"], services["encoder-decoder"]
    texts, targets = TEXTS[:5], TEXTS[4::-1]
    for live, body, wanted in (
        (speaker, {"input": texts}, speaker.run.score(texts)),
        (translator, {"input": texts, "target": targets}, translator.run.score(texts, targets)),
    ):
        data = live.ask("/v1/score", body).json()["data"]
        assert [one["log_prob"] for one in data] == pytest.approx([s.log_prob for s in wanted], abs=1e-4)
        assert [one["tokens"] for one in data] == [s.tokens for s in wanted]
        assert data[0]["perplexity"] == pytest.approx(
            np.exp(-wanted[0].log_prob / wanted[0].tokens), rel=1e-4
        )
    for live, body in (
        (speaker, {"input": "a", "target": "b"}),
        (translator, {"input": "a"}),
        (translator, {"input": ["a", "b"], "target": "c"}),
    ):
        assert live.ask("/v1/score", body).json()["error"]["param"] == "target"


def test_tokens_and_back(services):
    for live in services.values():
        for text in (*TEXTS, "a犬b\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")):
            answer = live.ask("/tokenize", {"prompt": text, "return_token_strs": True}).json()
            assert [answer["tokens"]] == live.run.tokenizer.encode([text])
            assert answer["token_strs"] == live.run.tokenizer.ids_to_tokens(answer["tokens"])
            if answer["count"]:
                back = live.ask("/detokenize", {"tokens": answer["tokens"]}).json()["prompt"]
                assert back == live.run.tokenizer.decode([answer["tokens"]])[0]
    for tokens in ([], [-1], [10**6], [2**63], ["a"], [1.5], [True], None, 7):
        assert live.ask("/detokenize", {"tokens": tokens}).json()["error"]["param"] == "tokens"


def test_what_does_not_fit_is_refused_unless_a_part_is_wished(services):
    for kind, path, field in (
        ("encoder", "/v1/embeddings", "input"), ("classifier", "/v1/classify", "input"), ("encoder-decoder",
            "/v1/translations", "input"),
        ("decoder", "/v1/completions", "prompt"),
    ):  # fmt: skip
        live = services[kind]
        answer = live.ask(path, {field: [LONG]})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        whole = live.ask(path, {field: [LONG], "truncate": True})
        assert whole.status_code == 200 and whole.json()["usage"]["prompt_tokens"] <= live.run.config.max_len
    for kind, path, body in (
        ("decoder", "/v1/score", {"input": ["a", LONG]}), ("encoder-decoder", "/v1/score", {"input": "a",
            "target": LONG}),
        ("encoder", "/v1/fill-mask", {"input": "<mask> " + LONG}),
    ):  # fmt: skip
        assert services[kind].ask(path, body).json()["error"]["code"] == "context_length_exceeded"
    encoder, translator = services["encoder"], services["encoder-decoder"]
    cut = encoder.ask("/v1/embeddings", {"input": LONG, "truncate": True}).json()["data"][0]["embedding"]
    assert cut == pytest.approx(encoder.run.embed([LONG])[0].tolist(), abs=1e-6)
    told = translator.ask("/v1/translations", {"input": LONG, "truncate": True}).json()["data"][0]["text"]
    (wanted,) = translator.run.hypotheses([LONG], truncate=True)
    assert told == translator.run.tokenizer.decode([wanted[0].tokens])[0].rstrip("\ufffd")


@pytest.mark.parametrize("deterministic", [False, True])
def test_requests_that_wait_together_are_computed_together_and_mistakes_stay_with_their_makers(
    maker, serving, deterministic
):
    with serving(maker("encoder"), deterministic=deterministic) as live:
        wait_together(live, deterministic)


def wait_together(live, deterministic):
    calls = []
    fill, gate = live.run.fill_mask, threading.Event()

    def watched(texts, top):
        calls.append(list(texts))
        gate.wait(30)
        return fill(texts, top)

    live.run.fill_mask = watched
    answers = {}

    def ask(text):
        answers[text] = live.ask("/v1/fill-mask", {"input": text, "top_k": 2})

    texts = ["a <mask>", "two <mask>", "no hole", "<mask> bark"]
    first = threading.Thread(target=ask, args=["the first <mask>"])
    first.start()
    live.until(lambda: bool(calls), "the first is computed")
    threads = [threading.Thread(target=ask, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    live.until(lambda: live.service.engine_thread.num_waiting == len(texts), "all wait")
    gate.set()
    for thread in [first, *threads]:
        thread.join()
    del live.run.fill_mask
    if deterministic:
        assert sorted(calls[1:]) == sorted([text] for text in texts), "each by itself"
    else:
        assert sorted(calls[1]) == sorted(texts), "all that waited, in one call"
    for text in texts:
        if text == "no hole":
            assert answers[text].status_code == 400
        else:
            (wanted,) = fill([text], 2)
            assert [f["token_str"] for f in answers[text].json()["data"][0]["masks"][0]] == [
                f.token for f in wanted[0]
            ]


def test_vectors_made_in_other_ways_are_not_computed_together(maker, serving):
    with serving(maker("encoder")) as live:
        embed, gate, calls = live.run.embed, threading.Event(), []

        def watched(texts, **changes):
            calls.append(changes)
            gate.wait(30)
            return embed(texts, **changes)

        live.run.embed = watched
        ways, answers = (
            [{}, {"pooling": "max"}, {"normalize": True}, {"pooling": "max", "normalize": True}],
            {},
        )

        def ask(number):
            body = {"input": TEXTS[0], **ways[number]}
            answers[number] = live.ask("/v1/embeddings", body).json()["data"][0]["embedding"]

        threads = [threading.Thread(target=ask, args=[number]) for number in range(len(ways))]
        threads[0].start()
        live.until(lambda: bool(calls), "the first is computed")
        for thread in threads[1:]:
            thread.start()
        live.until(lambda: live.service.engine_thread.num_waiting == len(ways) - 1, "all wait")
        gate.set()
        for thread in threads:
            thread.join()
        for number, way in enumerate(ways):
            assert answers[number] == pytest.approx(embed([TEXTS[0]], **way)[0].tolist(), abs=1e-5), way


@pytest.mark.parametrize("normalize", [False, True])
def test_fewer_dimensions_are_the_first_ones(services, normalize):
    """As truncate_dim of sentence-transformers: cut, and of length 1 again where vectors have it."""
    live = services["encoder"]
    body = {"input": TEXTS, "normalize": normalize}
    whole = np.array([one["embedding"] for one in live.ask("/v1/embeddings", body).json()["data"]])
    for k in (1, 5, 16):
        answer = live.ask("/v1/embeddings", body | {"dimensions": k}).json()
        wanted = torch.tensor(whole[:, :k])
        wanted = torch.nn.functional.normalize(wanted, dim=-1) if normalize else wanted
        found = [one["embedding"] for one in answer["data"]]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    for k in (0, 17):
        error = live.ask("/v1/embeddings", body | {"dimensions": k}).json()["error"]
        assert (
            error["param"] == "dimensions" and "out of range" in error["message"]
        ) or "1 or more" in error["message"]


def test_documents_are_ordered_by_the_scores_of_their_pairs(serving):
    run = make("classifier", labels=("score",))
    documents = ["a dog barks .", "zwei hunde", "dogs", "two dogs bark 犬 ."]
    pairs = [("dogs bark", document) for document in documents]
    scores = [one.probabilities["score"] for one in run.classify(pairs)]
    order = sorted(range(4), key=lambda i: -scores[i])
    with serving(run, limits=Limits(max_batch=3, max_embeddings=4)) as live:
        assert live.service.tasks == ["classify", "rerank", "embeddings"]
        body = {"query": "dogs bark", "documents": documents, "model": "tiny"}
        answer = live.ask("/v1/rerank", body).json()
        assert [one["index"] for one in answer["results"]] == order
        found = [one["relevance_score"] for one in answer["results"]]
        assert found == pytest.approx([scores[i] for i in order], abs=1e-6)
        assert [one["document"] for one in answer["results"]] == [{"text": documents[i]} for i in order]
        tokens = sum(len(a) + len(b) for a, b in map(run.tokenizer.encode, pairs))
        assert answer["model"] == "tiny" and answer["usage"]["total_tokens"] > tokens
        objects = {"documents": [{"text": one} for one in documents], "top_n": 2, "return_documents": False}
        short = live.ask("/v1/rerank", body | objects).json()
        assert short["results"] == [
            {key: one[key] for key in ("index", "relevance_score")} for one in answer["results"][:2]
        ]
        for change, param in (
            ({"documents": []}, "documents"), ({"documents": ["a", 1]}, "documents"),
            ({"documents": ["a"] * 5}, "documents"), ({"query": 1}, "query"),
            ({"query": "a" * 40_000}, "query"), ({"documents": [LONG]}, "documents"), ({"top_n": 0}, "top_n"),
            ({"rank_fields": ["title"]}, "rank_fields"),
        ):  # fmt: skip
            refusal = live.ask("/v1/rerank", body | change)
            assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, param), change
        assert live.ask("/v1/rerank", body | {"documents": [LONG], "truncate": True}).status_code == 200


def test_only_rerankers_rerank(services):
    for kind in ("classifier", "encoder", "decoder", "encoder-decoder"):
        error = services[kind].ask("/v1/rerank", {"query": "a", "documents": ["b"]}).json()["error"]
        assert error["code"] == "wrong_task", kind
