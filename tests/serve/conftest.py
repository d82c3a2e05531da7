"""Tiny untrained models behind a real server on a real socket, in a thread of the test."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.http.limits import Limits
from polyhead.serve.http.server import Server
from polyhead.serve.http.sockets import get_url, listen
from polyhead.serve.service import Service
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"kind": "decoder"},
    "encoder-decoder": {"kind": "encoder-decoder"},
    "encoder": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ("bad", "good"), "pooling": Choice("mean"), "lm_head": False},
}


def make(kind: str, **changes: Any) -> Run:
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48, "tie_embeddings": "none"}
    model = build(ModelConfig(vocab_size=tokens.vocab_size, **{**sizes, **KINDS[kind], **changes}), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return Run(
        model,
        tokens,
        GenerationConfig(beam_size=3, max_new_tokens=15, max_length_ratio=1.0, max_length_extra=5),
    )


def named(tokenizer: Tokenizer, token: int) -> str:
    """A token as log-probabilities name it, by the letters that GPT-2 writes bytes in (Radford et al.,
    2019).
    """
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    name = tokenizer.ids_to_tokens([token])[0]
    if token in tokenizer.special_ids:
        return name
    said = bytes(letters[letter] for letter in name)
    whole = said.decode(errors="replace")
    return whole if "\ufffd" not in whole else "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)


class Live:
    """A service that runs, and what tests ask of it."""

    def __init__(self, service: Service) -> None:
        self.service, self.run = service, service.run
        self.sock, ready = listen("127.0.0.1", 0), threading.Event()
        self.url = get_url(self.sock)
        self.server = Server(service, ready.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.sock],), daemon=True)
        self.thread.start()
        assert ready.wait(20)
        self.http = httpx2.Client(base_url=self.url, timeout=60, trust_env=False)

    def ask(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return self.http.get(path, **options) if body is None else self.http.post(path, json=body, **options)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, which must end as it should."""
        response = self.ask(path, {**body, "stream": True})
        assert response.headers["content-type"] == "text/event-stream", response.text
        lines = response.text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if not line.startswith(":")]

    def raw(self) -> socket.socket:
        sock = socket.create_connection(self.sock.getsockname()[:2], timeout=30)
        sock.settimeout(30)
        return sock

    def until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end, what
            time.sleep(0.002)

    def idle(self) -> None:
        """Wait until the model has nothing to do, and check that it has forgotten everybody."""
        driver, engine = self.service.engine_thread, self.service.engine
        assert driver is not None
        self.until(
            lambda: not driver.streams and not driver.num_waiting and not driver.num_running,
            "the service never rests",
        )
        assert engine is None or engine.engine.idle

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(20)
        self.service.close()
        assert not self.thread.is_alive()


@contextmanager
def living(
    run: Run, *, limits: Limits | None = None, keys: ApiKeys | None = None, **options: Any
) -> Iterator[Live]:
    live = Live(
        Service(run, "tiny", limits or Limits(), keys or ApiKeys(), **{"max_num_seqs": 64, **options})
    )
    try:
        yield live
    finally:
        live.stop()


class Slowly:
    """Steps of the engine that wait for a permit, so that a test decides how far a request has come."""

    def __init__(self, live: Live) -> None:
        assert live.service.engine is not None
        self.engine, self.permits = live.service.engine.engine, threading.Semaphore(0)
        self.entered = self.allowed = self.steps = 0
        self.live, self._step = live, self.engine.step

    def __enter__(self) -> Slowly:
        self.engine.step = self.step  # type: ignore[method-assign]
        return self

    def step(self) -> None:
        self.entered += 1
        assert self.permits.acquire(timeout=60)
        self._step()
        self.steps += 1

    def let(self, steps: int = 1) -> None:
        """Let so many steps happen."""
        self.allowed += steps
        for _ in range(steps):
            self.permits.release()

    def still(self) -> None:
        """Wait until all steps that were allowed have happened and the next one waits to be."""
        self.live.until(
            lambda: self.steps == self.allowed and self.entered == self.steps + 1, "the steps happen"
        )

    def __exit__(self, *_: object) -> None:
        del self.engine.step
        self.permits.release(10**6)


@pytest.fixture(scope="session")
def runs() -> dict[str, Run]:
    return {kind: make(kind) for kind in KINDS}


@pytest.fixture(scope="session")
def services(runs: dict[str, Run]) -> Iterator[dict[str, Live]]:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with (
        living(runs["decoder"]) as a,
        living(runs["encoder-decoder"]) as b,
        living(runs["encoder"]) as c,
        living(runs["classifier"]) as d,
    ):
        yield dict(zip(KINDS, (a, b, c, d), strict=True))


@pytest.fixture
def speaker(services: dict[str, Live]) -> Live:
    return services["decoder"]


@pytest.fixture
def translator(services: dict[str, Live]) -> Live:
    return services["encoder-decoder"]


@pytest.fixture
def serving() -> Any:
    return living


@pytest.fixture
def slowly() -> type[Slowly]:
    return Slowly


@pytest.fixture
def maker() -> Any:
    return make
