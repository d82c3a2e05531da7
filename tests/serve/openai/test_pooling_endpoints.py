"""Embeddings, classes, masked tokens, scores and tokens equal those of the run; long texts are refused."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.serve.conftest import TEXTS as NON_EMPTY_TEXTS
from tests.serve.conftest import build_run, get_error, make_recipe, serve_run, wait_until, with_generation

from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve.limits import Limits

TEXTS = [*NON_EMPTY_TEXTS, ""]
LONG = "dogs bark " * 60
EMBED, CLASSIFY, FILL_MASK = "/v1/embeddings", "/v1/classify", "/v1/fill-mask"


def read_vector(value):
    """A vector as a list of numbers, or packed in base64."""
    return np.frombuffer(base64.b64decode(value), "<f4") if isinstance(value, str) else value


def embed(client, texts, **fields):
    answer = client.ask(EMBED, {"input": texts, **fields})
    assert answer.status_code == 200, answer.text
    return [read_vector(data["embedding"]) for data in answer.json()["data"]]


def assert_close(vectors, expected, atol=1e-6):
    np.testing.assert_allclose(vectors, expected, atol=atol)


@pytest.mark.parametrize("pooling", ["mean", "first", "max", "last"])
def test_embeddings_equal_those_of_the_run(clients, pooling):
    for kind in ("encoder", "classifier", "decoder"):
        client, run = clients[kind], clients[kind].run
        body = {"input": TEXTS, "pooling": pooling, "dimensions": 16}
        answer = client.ask(EMBED, body).json()
        assert [data["index"] for data in answer["data"]] == list(range(len(TEXTS)))
        packed_vectors = embed(client, TEXTS, pooling=pooling, encoding_format="base64")
        for vectors in ([data["embedding"] for data in answer["data"]], packed_vectors):
            assert_close(vectors, run.embed(TEXTS, pooling=pooling))
        n_special = 1 if kind == "decoder" else 2
        n_tokens = sum(len(ids) + n_special for ids in run.tokenizer.encode(TEXTS))
        assert answer["usage"]["prompt_tokens"] == n_tokens


@pytest.mark.parametrize("layers", [None, "all", [-1, 0]])
def test_embeddings_of_tokens_and_layers(clients, layers):
    texts, fields = NON_EMPTY_TEXTS, {} if layers is None else {"layers": layers}
    for kind in ("encoder", "decoder"):
        run, n = clients[kind].run, clients[kind].run.config.n_layers
        numbers = {"None": None, "all": list(range(n + 1))}.get(str(layers), [n, 0])
        expected = run.embed_tokens(texts, layers=layers)
        for encoding in ("float", "base64"):
            body = {"input": texts, "tokens": True, "encoding_format": encoding, **fields}
            answer = clients[kind].ask(EMBED, body).json()
            for data, result in zip(answer["data"], expected, strict=True):
                assert data["shape"] == list(result.vectors.shape) and data["tokens"] == result.tokens
                assert data.get("layers") == numbers
                assert_close(np.reshape(read_vector(data["embedding"]), data["shape"]), result.vectors)
        if layers is not None:
            pooled_vectors = run.embed(texts, layers=layers, pooling="max", normalize=True)
            body = {"input": texts, "pooling": "max", "normalize": True, **fields}
            answer = clients[kind].ask(EMBED, body).json()
            assert_close([data["embedding"] for data in answer["data"]], pooled_vectors)
            assert all(data["layers"] == numbers and "tokens" not in data for data in answer["data"])


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize("options", [{}, {"layers": [0, -1]}, {"layers": [0, -1], "tokens": True}], ids=str)
def test_dimensions_keep_the_first_ones(clients, options, normalize):
    """As truncate_dim of sentence-transformers: cut, then normalised again if vectors are."""
    client, run = clients["encoder"], clients["encoder"].run
    fields = {"layers": options.get("layers")} | ({} if normalize is None else {"normalize": normalize})
    if "tokens" in options:
        expected = np.stack([run.embed_tokens([text], **fields)[0].vectors.numpy() for text in TEXTS[:1]])
    else:
        expected = run.embed(TEXTS[:1], **fields).numpy()
    default = run.generation.normalize and "tokens" not in options
    for k in (1, 5, 16):
        vectors = expected[..., :k]
        if default if normalize is None else normalize:
            vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        body = {name: value for name, value in (options | fields).items() if value is not None}
        assert_close(embed(client, TEXTS[:1], dimensions=k, **body), vectors)
    for k, message in ((0, "out of range"), (17, "")):
        error = get_error(client.ask(EMBED, {"input": TEXTS, "dimensions": k, **options}))
        assert error["param"] == "dimensions" and message in error["message"]


def test_number_of_vectors_is_limited(clients):
    run, body = clients["encoder"].run, {"input": ["dogs bark", "dogs"], "tokens": True}
    count = sum(len(result.tokens) for result in run.embed_tokens(body["input"]))
    with serve_run(run, limits=Limits(max_embeddings=count)) as client:
        assert client.ask(EMBED, body).status_code == 200
        error = get_error(client.ask(EMBED, {**body, "layers": [0, 1]}))
        assert error["code"] == "answer_too_long"
        assert f"{2 * count} vectors; the maximum is {count}" in error["message"]


def mean_vectors(run, rows):
    """The mean of the vectors of each row, computed alone."""
    with torch.inference_mode():
        return [run.model.encoder(torch.tensor([row]))[0].double().mean(0).tolist() for row in rows]


def test_input_may_be_token_ids(clients):
    for kind in ("encoder", "classifier", "decoder"):
        client, run, t = clients[kind], clients[kind].run, clients[kind].run.tokenizer
        ids = t.encode(NON_EMPTY_TEXTS)
        odd = [t.unk_id, 17, 17, t.vocab_size - 1]  # of no text
        prefix, suffix = ([], [t.eos_id]) if kind == "decoder" else ([t.bos_id], [t.eos_id])
        values = [(ids, ids), (ids[0], ids[:1]), ([ids[1]], ids[1:2]), (odd, [odd])]
        for value, expected in (*values, ([odd, ids[2]], [odd, ids[2]])):
            rows = [[*prefix, *row, *suffix] for row in expected]
            answer = client.ask(EMBED, {"input": value, "pooling": "mean"}).json()
            assert_close([data["embedding"] for data in answer["data"]], mean_vectors(run, rows), 1e-5)
            n_tokens = sum(map(len, rows))
            assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        usages = [client.ask(EMBED, {"input": value}).json()["usage"] for value in (ids, NON_EMPTY_TEXTS)]
        assert usages[0] == usages[1]


def test_openai_client_reads_embeddings(clients):
    client, run = clients["encoder"], clients["encoder"].run
    create = client.openai().embeddings.create
    (ids,), expected = run.tokenizer.encode(TEXTS[:1]), run.embed(TEXTS)
    for value, vectors in ((TEXTS, expected), (ids, expected[:1])):  # in base64
        data = create(model="tiny", input=value).data
        assert_close([one.embedding for one in data], vectors)
    (data,) = create(model="tiny", input=TEXTS[:1], extra_body={"tokens": True}).data
    assert_close(np.reshape(data.embedding, data.shape), run.embed_tokens(TEXTS[:1])[0].vectors)


@pytest.fixture(scope="module")
def short_client():
    """Embeddings of texts of 12 tokens and 40 characters at most."""
    run = with_generation(build_run("encoder"), embed_max_len=12, include_prompt=False)
    with serve_run(run, limits=Limits(max_chars=40, max_batch=2, max_embeddings=3)) as client:
        yield client


def test_token_ids_follow_a_prompt_and_are_truncated(short_client):
    t = short_client.run.tokenizer
    ids, prompt = (t.encode([text])[0] for text in ("two dogs bark", "dogs: "))
    (vector,) = embed(short_client, ids, prompt="dogs: ", truncate=True)
    row = [*[t.bos_id, *prompt, *ids][:11], t.eos_id]
    with torch.inference_mode():
        expected = short_client.run.model.encoder(torch.tensor([row]))[0, 1 + len(prompt) :].mean(0)
    assert_close(vector, expected, 1e-5)
    answer = short_client.ask(EMBED, {"input": [5] * 10}).json()
    truncated_answer = short_client.ask(EMBED, {"input": [*[5] * 10, 9, 9], "truncate": True}).json()
    assert answer["usage"]["prompt_tokens"] == truncated_answer["usage"]["prompt_tokens"] == 12
    assert answer["data"] == truncated_answer["data"]


NOT_A_TEXT = ("invalid_value", "is not a text, a list of texts, a list of token ids")


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ([5] * 11, "context_length_exceeded", "text 1 has more tokens than the model's maximum (12"),
        ([[5], [5] * 11], "context_length_exceeded", "text 2 has more tokens than the model's maximum (12"),
        ([5] * 41, "text_too_long", "input has a text of 41 tokens; the maximum is 40"),
        ([[5]] * 4, "too_many_texts", "input has 4 texts; the maximum is 3"),
        ([[5], [-1]], "invalid_value", "input: no token -1"),
        *((value, *NOT_A_TEXT) for value in ([], [[]], [1.5], [True], [[[5]]])),
    ],
    ids=range(10),
)
def test_invalid_token_ids_are_refused(short_client, value, code, message):
    error = get_error(short_client.ask(EMBED, {"input": value}))
    assert (error["code"], error["param"]) == (code, "input") and message in error["message"]
    n = short_client.run.tokenizer.vocab_size
    error = get_error(short_client.ask(EMBED, {"input": [5, n]}))
    assert f"input: no token {n}; the vocabulary has 0 to {n - 1}" in error["message"]


def test_long_list_is_embedded_in_batches(monkeypatch):
    run, sizes = build_run("encoder"), []
    embed_texts = run.embed
    monkeypatch.setattr(run, "embed", lambda texts, **o: sizes.append(len(texts)) or embed_texts(texts, **o))
    texts = [f"{'dogs ' * (i % 7)}{i}" for i in range(100)]
    with serve_run(run, limits=Limits(max_embeddings=100)) as client:
        vectors = embed(client, texts)
        assert sizes == [32, 32, 32, 4]
        for i in (0, 31, 32, 50, 99):
            assert_close(embed(client, texts[i])[0], vectors[i], 1e-5)
        (*_, last) = client.openai().embeddings.create(model="tiny", input=texts).data
        assert_close(last.embedding, vectors[99])
        error = get_error(client.ask(EMBED, {"input": [*texts, "a"]}))
        assert (error["code"], error["param"]) == ("too_many_texts", "input")
        assert "the maximum is 100" in error["message"]


def test_prompts_of_the_run_are_put_before_texts():
    prompts = {"query": "two dogs: ", "page": ""}
    run = with_generation(build_run("encoder"), embed_prompts=prompts, embed_prompt="query", embed_max_len=12)
    with serve_run(run) as client:
        card = client.ask("/v1/models").json()["data"][0]["polyhead"]
        assert (card["prompts"], card["prompt"]) == (prompts, "query")
        prefixes = [({}, "two dogs: "), ({"prompt": "page"}, ""), ({"prompt": ""}, "")]
        prefixes += [({"prompt": None}, "two dogs: "), ({"prompt": "a ."}, "a .")]
        for fields, prefix in prefixes:
            texts = [prefix + text for text in TEXTS[:2]]
            answer = client.ask(EMBED, {"input": TEXTS[:2], "truncate": True, **fields}).json()
            assert_close([data["embedding"] for data in answer["data"]], run.embed(texts, embed_prompt=""))
            lengths = [min(12, len(ids) + 2) for ids in run.tokenizer.encode(texts)]
            assert answer["usage"]["prompt_tokens"] == sum(lengths)
        too_long = "text 1 has more tokens than the model's maximum (12, including special tokens)"
        unknown = {"input": "dogs", "prompt": "pagge"}
        assert too_long in get_error(client.ask(EMBED, {"input": "dogs bark " * 8}))["message"]
        message = get_error(client.ask(EMBED, unknown))["message"]
        assert "unknown prompt 'pagge'; did you mean 'page'?" in message


def test_classes_of_texts_and_pairs(clients):
    client, pairs = clients["classifier"], [["a dog barks .", "dogs"], ["dogs", "zwei hunde"]]
    for value, texts in ((TEXTS, TEXTS), (pairs, [*map(tuple, pairs)]), (TEXTS[0], TEXTS[:1])):
        answer = client.ask(CLASSIFY, {"input": value}).json()
        for data, expected in zip(answer["data"], client.run.classify(texts), strict=True):
            assert data["label"] == expected.label
            assert data["scores"] == pytest.approx(expected.probabilities)
            assert data["score"] == data["scores"][data["label"]]


@pytest.mark.parametrize(
    ("columns", "valid", "invalid", "message"),
    [
        (["text"], "a dog", [["a dog", "dogs"]], "pairs of texts; expected a text or a list of texts"),
        (["a", "b"], [["a dog", "dogs"]], "a dog", "single texts; expected a list of pairs"),
    ],
    ids=["texts", "pairs"],
)
def test_classifier_requires_the_columns_of_its_training(tmp_path, columns, valid, invalid, message):
    run = build_run("classifier")
    run.recipe = make_recipe("classification", tmp_path, valid=["a.tsv"], text=columns)
    with serve_run(run) as client:
        error = get_error(client.ask(CLASSIFY, {"input": invalid}))
        assert (error["param"], error["code"]) == ("input", "invalid_value") and message in error["message"]
        assert client.ask(CLASSIFY, {"input": valid}).status_code == 200


def test_ensemble_of_classifiers_averages_probabilities():
    runs = [build_run("classifier"), build_run("classifier", d_model=24, n_heads=3)]
    with serve_run(ensemble_runs(runs)) as client:
        answer = client.ask(CLASSIFY, {"input": TEXTS}).json()
        for i, data in enumerate(answer["data"]):
            a, b = (run.classify(TEXTS)[i].probabilities for run in runs)
            assert data["scores"] == pytest.approx({label: (a[label] + b[label]) / 2 for label in a})
        assert get_error(client.ask(EMBED, {"input": "dogs"}))["code"] == "wrong_task"


def test_masked_tokens_equal_those_of_the_run(clients):
    client, texts = clients["encoder"], ["a <mask> barks .", "[MASK] dogs <mask>"]
    answer = client.ask(FILL_MASK, {"input": texts, "top_k": 3}).json()
    for data, masks in zip(answer["data"], client.run.fill_mask(texts, 3), strict=True):
        for tokens, fills in zip(data["masks"], masks, strict=True):
            expected = [(fill.token, fill.text) for fill in fills]
            assert [(token["token_str"], token["sequence"]) for token in tokens] == expected
            assert [token["score"] for token in tokens] == pytest.approx([f.probability for f in fills])
    error = get_error(client.ask(FILL_MASK, {"input": ["a <mask>", "no hole"]}))
    assert "text 2 has no mask" in error["message"]


@pytest.mark.acceptance("E12", "E6")
def test_answer_size_of_masks_is_limited_first(clients, monkeypatch):
    """An answer has the text for each token of each mask: 32 texts of 4,000 masks would be gigabytes."""
    client, calls = clients["encoder"], []
    with monkeypatch.context() as patch:
        patch.setattr(client.run, "fill_mask", lambda *_: calls.append(1))
        error = get_error(client.ask(FILL_MASK, {"input": ["<mask>[MASK]" * 300] * 2, "top_k": 50}))
    size = 50 * 1200 * 300 * 12
    assert error["code"] == "answer_too_long" and not calls
    assert f"1200 masks with 50 tokens each would take {size:,}" in error["message"]
    with serve_run(client.run, limits=Limits(max_body=5 * 2 * 13)) as small_client:
        for text, status in (("a <mask> <mask>", 400), ("a<mask><mask> ", 400), ("a<mask><mask>", 200)):
            assert small_client.ask(FILL_MASK, {"input": text}).status_code == status, text


def test_scores_equal_those_of_the_run(client, translator):
    texts, targets = TEXTS[:5], TEXTS[4::-1]
    for service, body, expected in (
        (client, {"input": texts}, client.run.score(texts)),
        (translator, {"input": texts, "target": targets}, translator.run.score(texts, targets)),
    ):
        data = service.ask("/v1/score", body).json()["data"]
        assert [one["log_prob"] for one in data] == pytest.approx([s.log_prob for s in expected], abs=1e-4)
        assert [one["tokens"] for one in data] == [s.tokens for s in expected]
        perplexity = np.exp(-expected[0].log_prob / expected[0].tokens)
        assert data[0]["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    for service, body in (
        (client, {"input": "a", "target": "b"}),
        (translator, {"input": "a"}),
        (translator, {"input": ["a", "b"], "target": "c"}),
    ):
        assert get_error(service.ask("/v1/score", body))["param"] == "target"


def test_tokenize_and_detokenize(clients):
    for client in clients.values():
        t = client.run.tokenizer
        for text in (*TEXTS, "a犬b\U0001f600"):
            answer = client.ask("/tokenize", {"prompt": text, "return_token_strs": True}).json()
            tokens = answer["tokens"]
            assert [tokens] == t.encode([text]) and answer["count"] == len(tokens)
            assert answer["token_strs"] == t.ids_to_tokens(tokens)
            if tokens:
                assert [client.ask("/detokenize", {"tokens": tokens}).json()["prompt"]] == t.decode([tokens])
    for tokens in ([], [-1], [10**6], [2**63], ["a"], [1.5], [True], None, 7):
        assert get_error(client.ask("/detokenize", {"tokens": tokens}))["param"] == "tokens"


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("encoder", EMBED, {"input": [LONG]}),
        ("classifier", CLASSIFY, {"input": [LONG]}),
        ("encoder-decoder", "/v1/translations", {"input": [LONG]}),
        ("decoder", "/v1/completions", {"prompt": [LONG]}),
        ("decoder", "/v1/score", {"input": ["a", LONG]}),
        ("encoder-decoder", "/v1/score", {"input": "a", "target": LONG}),
        ("encoder", FILL_MASK, {"input": "<mask> " + LONG}),
    ],
)
def test_long_texts_are_refused_or_truncated(clients, kind, path, body):
    client = clients[kind]
    assert get_error(client.ask(path, body))["code"] == "context_length_exceeded"
    if path in ("/v1/score", FILL_MASK):
        return
    answer = client.ask(path, body | {"truncate": True}).json()
    assert answer["usage"]["prompt_tokens"] <= client.run.config.max_len
    if kind == "encoder":
        assert_close([answer["data"][0]["embedding"]], client.run.embed([LONG]))
    elif kind == "encoder-decoder":
        ((hypothesis, *_),) = client.run.hypotheses([LONG], truncate=True)
        (expected,) = client.run.tokenizer.decode([hypothesis.tokens])
        assert answer["data"][0]["text"] == expected.rstrip("\ufffd")


class BlockedMethod:
    """A method of a run that waits for an event and records its calls."""

    def __init__(self, run, name, monkeypatch):
        self.method, self.calls, self.may_finish = getattr(run, name), [], threading.Event()
        monkeypatch.setattr(run, name, self)

    def __call__(self, texts, *args, **options):
        self.calls.append((list(texts), options))
        self.may_finish.wait()
        return self.method(texts, *args, **options)

    def ask_together(self, client, path, bodies):
        """The answers to requests that wait while the first is computed."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = [pool.submit(client.ask, path, bodies[0])]
            wait_until(lambda: self.calls)
            answers += [pool.submit(client.ask, path, body) for body in bodies[1:]]
            waiting = len(bodies) - 1
            wait_until(lambda: client.service.engine_thread.num_waiting == waiting)
            self.may_finish.set()
            return [answer.result() for answer in answers]


@pytest.mark.parametrize("deterministic", [False, True])
def test_waiting_requests_are_computed_in_one_batch(monkeypatch, deterministic):
    """An error in one of them fails only that one; in deterministic mode each is a batch of its own."""
    texts = ["the first <mask>", "a <mask>", "two <mask>", "no hole", "<mask> bark"]
    options = [{}, {"pooling": "max"}, {"normalize": True}, {"pooling": "max", "normalize": True}]
    run = build_run("encoder")
    with serve_run(run, deterministic=deterministic) as client:
        fill_mask, embed = (BlockedMethod(run, name, monkeypatch) for name in ("fill_mask", "embed"))
        answers = fill_mask.ask_together(client, FILL_MASK, [{"input": text, "top_k": 2} for text in texts])
        vectors = embed.ask_together(client, EMBED, [{"input": TEXTS[0], **fields} for fields in options])
    calls = [texts for texts, _ in fill_mask.calls[1:]]
    if deterministic:
        assert sorted(calls) == sorted([text] for text in texts[1:])
    else:
        assert sorted(calls[0]) == sorted(texts[1:])
    for text, answer in zip(texts, answers, strict=True):
        if text == "no hole":
            assert answer.status_code == 400
        else:
            ((fills,),) = fill_mask.method([text], 2)
            tokens = answer.json()["data"][0]["masks"][0]
            assert [token["token_str"] for token in tokens] == [fill.token for fill in fills]
    for fields, answer in zip(options, vectors, strict=True):  # other options are other batches
        vector = answer.json()["data"][0]["embedding"]
        assert_close([vector], embed.method([TEXTS[0]], **fields), 1e-5)


def test_rerank_sorts_documents_by_their_scores():
    run = build_run("classifier", labels=("score",))
    documents = ["a dog barks .", "zwei hunde", "dogs", "two dogs bark 犬 ."]
    pairs = [("dogs bark", document) for document in documents]
    scores = [result.probabilities["score"] for result in run.classify(pairs)]
    order = sorted(range(4), key=lambda i: -scores[i])
    with serve_run(run, limits=Limits(max_batch=3, max_embeddings=4)) as client:
        assert client.service.tasks == ["classify", "rerank", "embeddings"]
        body = {"query": "dogs bark", "documents": documents, "model": "tiny"}
        answer = client.ask("/v1/rerank", body).json()
        results = answer["results"]
        assert [result["index"] for result in results] == order
        assert [result["document"] for result in results] == [{"text": documents[i]} for i in order]
        expected = [scores[i] for i in order]
        assert [result["relevance_score"] for result in results] == pytest.approx(expected, abs=1e-6)
        n_tokens = sum(len(a) + len(b) for a, b in map(run.tokenizer.encode, pairs))
        assert answer["model"] == "tiny" and answer["usage"]["total_tokens"] > n_tokens
        objects = {"documents": [{"text": text} for text in documents], "top_n": 2, "return_documents": False}
        expected = [{key: r[key] for key in ("index", "relevance_score")} for r in results[:2]]
        assert client.ask("/v1/rerank", body | objects).json()["results"] == expected
        for param, value in (
            ("documents", []),
            ("documents", ["a", 1]),
            ("documents", ["a"] * 5),
            ("documents", [LONG]),
            ("query", 1),
            ("query", "a" * 40_000),
            ("top_n", 0),
            ("rank_fields", ["title"]),
        ):
            assert get_error(client.ask("/v1/rerank", body | {param: value}))["param"] == param
        assert client.ask("/v1/rerank", body | {"documents": [LONG], "truncate": True}).status_code == 200
