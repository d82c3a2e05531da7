"""Odd, wrong and secret inputs: each is answered truthfully, and the next request as before."""

import socket

import pytest
from tests.serve.conftest import build_run, get_error, serve_run, wait_until

from polyhead import ModelConfig, build
from polyhead.run.run import Run
from polyhead.serve.auth import ApiKeys
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as InnerTokenizer

PATH = "/v1/completions"
ODD_TEXTS = ["", " ", "\x00", "\u202e" * 100, "👩‍👩‍👧‍👦" * 3, "<|endoftext|>", "</s>", "<pad>"]
ODD_TEXTS += ["\ufeffx", "犬" * 5, "\r\n\x0b\x85\u2028"]
RANKING = {"query": "a", "documents": ["b"]}


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize("prompt", ODD_TEXTS, ids=ascii)
def test_odd_prompts_are_completed(checked_client, prompt):
    body = {"prompt": prompt, "seed": 1, "max_tokens": 3, "truncate": True, "echo": True}
    (choice,) = checked_client.ask(PATH, body).json()["choices"]
    assert choice["text"].startswith(prompt)
    if len(prompt) < 20:
        (expected,) = checked_client.run.generate([prompt], seed=1, max_new_tokens=3)
        assert choice["text"] == prompt + expected


@pytest.mark.acceptance("E12", "E6")
def test_empty_messages_count_towards_the_limit(chat_client):
    for role in ("user", "assistant"):
        body = {"messages": [{"role": role, "content": ""}] * 50000, "truncate": True}
        error = get_error(chat_client.ask("/v1/chat/completions", body))
        assert (error["code"], error["param"]) == ("text_too_long", "messages")


@pytest.mark.parametrize(
    ("kind", "path", "body", "tasks"),
    [
        ("encoder", "/v1/completions", {"prompt": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("encoder", "/v1/translations", {"input": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("decoder", "/v1/translations", {"input": "a"}, "/v1/completions, /v1/score"),
        ("decoder", "/v1/fill-mask", {"input": "a", "stream": True}, "/v1/completions, /v1/score, /v1/embed"),
        ("classifier", "/v1/fill-mask", {"input": "a <mask>"}, "/v1/classify, /v1/embeddings"),
        ("encoder-decoder", "/v1/classify", {"input": "a"}, "/v1/translations, /v1/completions"),
        ("encoder", "/v1/score", {"input": "a"}, "/v1/embeddings"),
        *((kind, "/v1/rerank", RANKING, "") for kind in ("encoder", "classifier", "decoder")),
    ],
)
def test_wrong_task_is_refused_with_the_right_ones(clients, kind, path, body, tasks):
    error = get_error(clients[kind].ask(path, body))
    assert error["code"] == "wrong_task" and tasks in error["message"]


@pytest.mark.acceptance("F11")
def test_texts_and_keys_are_not_logged(runs, caplog, monkeypatch):
    caplog.set_level(0)
    message = "secret words"  # not in the line of the source that a traceback shows

    def fail():
        raise RuntimeError(message)

    with serve_run(runs["decoder"], keys=ApiKeys(["secret-key-of-somebody"])) as client:
        headers = {"authorization": "Bearer secret-key-of-somebody"}
        for path, body in (
            (PATH, {"prompt": "secret words", "max_tokens": 2}),
            (PATH, {"prompt": "secret words " * 60}),
            (f"{PATH}?q=secret", {"prompt": ["secret"], "secret": 1, "seed": "secret"}),
            ("/v1/models/secret", None),
        ):
            client.ask(path, body, headers=headers)
        client.ask("/secret", headers={"authorization": "Bearer secret-key-that-is-wrong"})
        with monkeypatch.context() as patch:
            patch.setattr(client.service.engine.engine, "step", fail)
            get_error(client.ask(PATH, {"prompt": "secret words"}, headers=headers), 500)
    records = [record for record in caplog.records if record.name.startswith("polyhead")]
    assert len(records) > 5
    assert not [record for record in records if "secret" in record.getMessage()]


def test_polls_write_no_line_in_the_log(client, caplog):
    caplog.set_level("INFO", "polyhead.serve")
    for path in ("/health/ready", "/metrics", "/v1/models"):
        assert client.ask(path).status_code == 200
    wait_until(lambda: "/v1/models" in caplog.text)  # the line is written after the answer
    lines = [record.getMessage().split(" ", 1)[1] for record in caplog.records]
    assert [line.rsplit(" ", 2)[0] for line in lines] == ["GET /v1/models 200"]


@pytest.mark.acceptance("F5")
def test_urls_in_requests_are_not_fetched(client, translator, monkeypatch):
    addresses, connect = [], socket.socket.connect

    def record(sock, address):
        addresses.append(address)
        return connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", record)
    client.connect().close()  # create_connection goes through it
    assert addresses == [client.sock.getsockname()[:2]]
    url = "http://127.0.0.1:9/secret"
    body = {"prompt": url, "max_tokens": 1, "model": "tiny", "image_url": url, "user": url}
    client.ask(PATH, body)
    translator.ask("/v1/translations", {"input": url, "truncate": True})
    for service in (client, translator):
        service.ask("/v1/models/" + url)
    ports = {service.sock.getsockname()[1] for service in (client, translator)}
    assert {address[1] for address in addresses} <= ports


def test_task_without_a_target_language_is_refused():
    run = build_run("encoder-decoder")
    inner = InnerTokenizer.from_str(run.tokenizer.tokenizer_json)
    inner.add_special_tokens([">>deu<<", ">>fra<<"])
    config = run.config.model_dump() | {"vocab_size": inner.get_vocab_size()}
    model = build(ModelConfig.model_validate(config), seed=1)
    with serve_run(Run(model, Tokenizer(inner, run.tokenizer.roles), run.generation)) as client:
        (card,) = client.ask("/v1/models").json()["data"]
        assert card["polyhead"]["tasks"] == ["translations"]
        for path, body in ((PATH, {"prompt": "a dog"}), ("/v1/score", {"input": "a dog", "target": "hund"})):
            message = get_error(client.ask(path, body))["message"]
            assert "several languages; set the target language" in message
        assert client.ask("/v1/translations", {"input": "a dog", "target": "deu"}).status_code == 200
