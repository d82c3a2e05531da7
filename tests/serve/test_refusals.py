"""Whatever comes in is answered, truthfully and in one shape; the next request is served as if nothing had
been.
"""

from __future__ import annotations

import socket

import pytest
from tests.serve.conftest import make
from tests.serve.refusals_helpers import canary as canary
from tests.serve.refusals_helpers import refused

from polyhead import Choice, ModelConfig, build
from polyhead.run.run import Run
from polyhead.serve.http.auth import ApiKeys
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as Inner

TAKEN = [
    "",
    " ",
    "\x00",
    "\u202e" * 100,
    "👩‍👩‍👧‍👦" * 3,
    "<|endoftext|>",
    "</s>",
    "<pad>",
    "\ufeffx",
    "犬" * 5,
    "\r\n\x0b\x85\u2028",
]


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize("prompt", TAKEN, ids=ascii)
def test_odd_texts_are_texts(speaker, canary, prompt):
    body = {"prompt": prompt, "seed": 1, "max_tokens": 3, "truncate": True, "echo": True}
    (choice,) = speaker.ask("/v1/completions", body).json()["choices"]
    (wanted,) = (
        speaker.run.generate([prompt], seed=1, max_new_tokens=3)
        if len(prompt) < 20
        else [choice["text"].removeprefix(prompt)]
    )
    assert choice["text"] == prompt + wanted


@pytest.mark.acceptance("E12", "E6")
def test_messages_that_say_nothing_are_counted_too(serving, maker, canary):
    with serving(maker("decoder"), chat=Choice("plain")) as live:
        for role in ("user", "assistant"):
            body = {"messages": [{"role": role, "content": ""}] * 50000, "truncate": True}
            error = refused(live.ask("/v1/chat/completions", body))
            assert error["code"] == "text_too_long" and error["param"] == "messages"


@pytest.mark.parametrize(
    ("kind", "path", "body", "able"),
    [
        ("encoder", "/v1/completions", {"prompt": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("encoder", "/v1/translations", {"input": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("decoder", "/v1/translations", {"input": "a"}, "/v1/completions, /v1/score"),
        (
            "decoder",
            "/v1/fill-mask",
            {"input": "a", "stream": True},
            "/v1/completions, /v1/score, /v1/embeddings",
        ),
        ("classifier", "/v1/fill-mask", {"input": "a <mask>"}, "/v1/classify, /v1/embeddings"),
        ("encoder-decoder", "/v1/classify", {"input": "a"}, "/v1/translations, /v1/completions"),
        ("encoder", "/v1/score", {"input": "a"}, "/v1/embeddings"),
    ],
)
def test_a_task_of_another_kind_is_refused_with_those_that_there_are(services, kind, path, body, able):
    error = refused(services[kind].ask(path, body))
    assert error["code"] == "wrong_task" and able in error["message"]


@pytest.mark.acceptance("F11")
def test_no_text_and_no_key_gets_into_the_log(runs, serving, caplog):
    caplog.set_level(0)
    with serving(runs["decoder"], keys=ApiKeys(["secret-key-of-somebody"])) as live:
        headers = {"authorization": "Bearer secret-key-of-somebody"}
        live.ask("/v1/completions", {"prompt": "secret words", "max_tokens": 2}, headers=headers)
        live.ask("/v1/completions", {"prompt": "secret words " * 60}, headers=headers)
        live.ask(
            "/v1/completions?q=secret", {"prompt": ["secret"], "secret": 1, "seed": "secret"}, headers=headers
        )
        live.ask("/v1/models/secret", headers=headers)
        live.ask("/secret", headers={"authorization": "Bearer secret-key-that-is-wrong"})
        step = live.service.engine.engine.step

        said = "secret words"

        def broken():
            raise RuntimeError(said)

        live.service.engine.engine.step = broken
        refused(live.ask("/v1/completions", {"prompt": "secret words"}, headers=headers), 500)
        live.service.engine.engine.step = step
    own = [record for record in caplog.records if record.name.startswith("polyhead")]
    assert len(own) > 5
    assert not [record for record in own if "secret" in record.getMessage()]


@pytest.mark.acceptance("F5")
def test_nothing_is_ever_fetched(speaker, translator, monkeypatch):
    tried = []
    connect = socket.socket.connect

    def watched(sock, place):
        tried.append(place)
        return connect(sock, place)

    monkeypatch.setattr(socket.socket, "connect", watched)
    url = "http://127.0.0.1:9/secret"
    raw = speaker.raw()  # create_connection goes through it: the watch works
    raw.close()
    assert tried == [speaker.sock.getsockname()[:2]]
    for live, path, body in (
        (
            speaker,
            "/v1/completions",
            {"prompt": url, "max_tokens": 1, "model": "tiny", "image_url": url, "user": url},
        ),
        (translator, "/v1/translations", {"input": url, "truncate": True}),
    ):
        live.ask(path, body)
        live.ask("/v1/models/" + url)
    assert {place[1] for place in tried} <= {speaker.sock.getsockname()[1], translator.sock.getsockname()[1]}


def test_what_names_no_language_is_no_task_of_a_model_of_several(serving):
    run = make("encoder-decoder")
    inner = Inner.from_str(run.tokenizer._inner.to_str())
    ids = [inner.get_vocab_size() + i for i in range(2)]
    inner.add_special_tokens([">>deu<<", ">>fra<<"])
    larger = ModelConfig.model_validate(run.config.model_dump() | {"vocab_size": ids[-1] + 1})
    several = Run(build(larger, seed=1), Tokenizer(inner, run.tokenizer._roles), run.generation)
    with serving(several) as live:
        (about,) = live.ask("/v1/models").json()["data"]
        assert about["polyhead"]["tasks"] == ["translations"]
        for path, body in (
            ("completions", {"prompt": "a dog"}),
            ("score", {"input": "a dog", "target": "hund"}),
        ):
            assert (
                "several languages; set the target language"
                in refused(live.ask(f"/v1/{path}", body))["message"]
            )
        assert live.ask("/v1/translations", {"input": "a dog", "target": "deu"}).status_code == 200
