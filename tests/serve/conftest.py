"""Small untrained models behind a real server on a real socket, in a thread of the test."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch
from tests.serve.tool_call_helpers import build_tool_run
from transformers.convert_slow_tokenizer import bytes_to_unicode

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.generation.decoding.sampling import Sampling
from polyhead.run.run import Run
from polyhead.serve.auth import ApiKeys
from polyhead.serve.http.server import Server
from polyhead.serve.http.sockets import get_url, listen
from polyhead.serve.limits import Limits
from polyhead.serve.openai.routes import make_app
from polyhead.serve.service import Service
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Tokenizer as InnerTokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"kind": "decoder"},
    "encoder-decoder": {"kind": "encoder-decoder"},
    "encoder": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ("bad", "good"), "pooling": Choice("mean"), "lm_head": False},
}
ENDLESS = {"prompt": "a dog barks .", "max_tokens": 30, "seed": 1, "stop": ["never said"]}


def build_run(kind: str, **changes: Any) -> Run:
    tokenizer = train_tokenizer(TEXTS * 5, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48, "tie_embeddings": "none"}
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **{**sizes, **KINDS[kind], **changes})
    model = build(config, seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    generation = GenerationConfig(beam_size=3, max_new_tokens=15, max_length_ratio=1.0, max_length_extra=5)
    return Run(model, tokenizer, generation)


def with_generation(run: Run, **changes: Any) -> Run:
    """The run with other defaults of generation."""
    return Run(run.model, run.tokenizer, run.generation.model_copy(update=changes))


def build_chat_run(**changes: Any) -> Run:
    """A decoder that converses in the plain format."""
    return with_generation(build_run("decoder", **changes), chat=Choice("plain"))


def make_recipe(task: str, root: Path, **data: Any) -> Recipe:
    data = {"root": str(root), "train": ["none.tsv"], "max_len": 40, **data}
    return Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}})


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """A token as log-probabilities name it: its text, or the bytes of a part of a character.

    GPT-2 writes bytes as letters (Radford et al., 2019).
    """
    (name,) = tokenizer.ids_to_tokens([token])
    if token in tokenizer.special_ids:
        return name
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    data = bytes(byte_of[letter] for letter in name)
    text = data.decode(errors="replace")
    return text if "\ufffd" not in text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def wait_until(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.002)


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def get_error(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refused request, which must be of one line and in one shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert "\n" not in error["message"] and "Traceback" not in response.text
    return dict(error)


class Client:
    """A client of a service that runs in a thread, and the service."""

    def __init__(self, service: Service) -> None:
        self.service, self.run = service, service.run
        self.sock, is_ready = listen("127.0.0.1", 0), threading.Event()
        self.url = get_url(self.sock)
        self.server = Server(make_app(service), is_ready.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.sock],), daemon=True)
        self.thread.start()
        assert is_ready.wait(100)
        self.http = httpx2.Client(base_url=self.url, timeout=100, trust_env=False)

    def ask(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return self.http.get(path, **options) if body is None else self.http.post(path, json=body, **options)

    def post(self, content: Any, **headers: str) -> httpx2.Response:
        """A completion request with a raw body."""
        headers = {"content-type": "application/json", **headers}
        return self.http.post("/v1/completions", content=content, headers=headers)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, which must be complete."""
        response = self.ask(path, {**body, "stream": True})
        assert response.headers["content-type"] == "text/event-stream", response.text
        lines = response.text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if not line.startswith(":")]

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.sock.getsockname()[:2], timeout=100)
        sock.settimeout(100)
        return sock

    def send(self, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
        """Send a request on a socket of its own, from which the answer is not read."""
        sock, content = self.connect(), json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return sock

    def wait_read(self) -> None:
        """Wait until the service has read what other sockets sent: one loop reads from all of them."""
        assert self.ask("/health/live").status_code == 200

    def wait_idle(self) -> None:
        """Wait until the model has nothing to do and keeps nothing of any request."""
        thread, engine = self.service.engine_thread, self.service.engine
        assert thread is not None
        wait_until(lambda: not (thread.streams or thread.num_waiting or thread.num_running))
        assert engine is None or engine.engine.idle

    def wait_closed(self) -> None:
        wait_until(lambda: not self.server.server_state.connections)

    def count_aborted(self, reason: str) -> float:
        return float(self.service.metrics.aborted_requests.labels(reason)._value.get())

    def hold_steps(self) -> "StepGate":
        return StepGate(self)

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive(), "the server has not ended within a minute"
        self.service.close()


@contextmanager
def serve_run(
    run: Run, *, limits: Limits | None = None, keys: ApiKeys | None = None, **options: Any
) -> Iterator[Client]:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    options = {"max_num_seqs": 64, **options}
    client = Client(Service(run, "tiny", limits or Limits(), keys or ApiKeys(), **options))
    try:
        yield client
    finally:
        client.stop()


class StepGate:
    """Holds each step of the engine until it is allowed, so that a test decides how far a request is."""

    def __init__(self, client: Client) -> None:
        assert client.service.engine is not None
        self.engine, self.permits = client.service.engine.engine, threading.Semaphore(0)
        self.num_entered = self.num_allowed = self.num_steps = 0
        self._step = self.engine.step

    def __enter__(self) -> "StepGate":
        self.engine.step = self.step  # type: ignore[method-assign]
        return self

    def step(self) -> None:
        self.num_entered += 1
        self.permits.acquire()
        self._step()
        self.num_steps += 1

    def allow(self, steps: int = 1) -> None:
        self.num_allowed += steps
        for _ in range(steps):
            self.permits.release()

    def wait_entered(self, steps: int = 1) -> None:
        wait_until(lambda: self.num_entered == steps)

    def wait_blocked(self) -> None:
        """Wait until all allowed steps are done and the next one is held."""
        wait_until(lambda: self.num_steps == self.num_allowed and self.num_entered == self.num_steps + 1)

    def __exit__(self, *_: object) -> None:
        del self.engine.step
        self.permits.release(10**5)


@pytest.fixture(scope="session")
def runs() -> dict[str, Run]:
    return {kind: build_run(kind) for kind in KINDS}


@pytest.fixture(scope="session")
def clients(runs: dict[str, Run]) -> Iterator[dict[str, Client]]:
    """A client of a service of each kind of model."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(serve_run(run)) for kind, run in runs.items()}


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    """The client of the language model."""
    return clients["decoder"]


@pytest.fixture
def translator(clients: dict[str, Client]) -> Client:
    return clients["encoder-decoder"]


@pytest.fixture
def checked_client(client: Client) -> Iterator[Client]:
    """The client of the language model, which afterwards must answer as before."""
    yield client
    (expected,) = client.run.generate(["a dog barks ."], seed=7, max_new_tokens=12)
    answer = client.ask("/v1/completions", {"prompt": "a dog barks .", "seed": 7, "max_tokens": 12})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == expected
    client.wait_idle()


@pytest.fixture(scope="session")
def chat_client() -> Iterator[Client]:
    """A client of a model that reads 200 tokens and converses in the plain format."""
    with serve_run(build_chat_run(max_len=200)) as client:
        yield client


@pytest.fixture(
    scope="session", params=[("chatml", None), ("llama3", None), ("mistral", True)], ids=lambda p: p[0]
)
def tool_client(request: Any) -> Iterator[Client]:
    """A client of a model that calls tools, in each format that can."""
    with serve_run(build_tool_run(*request.param), limits=Limits(max_chars=2000)) as client:
        yield client


@pytest.fixture(scope="session", params=[False, True], ids=["lenient", "strict"])
def fields_client(request: Any) -> Iterator[Client]:
    """A client of a service that ignores unknown fields, and of one that refuses them."""
    limits = Limits(max_chars=2000)
    with serve_run(build_tool_run("chatml", None), limits=limits, strict_fields=request.param) as client:
        yield client


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client, str], None]:
    """Lets a model write a text in its next answer; marks of calls that are special tokens as such."""

    def script(client: Client, text: str) -> None:
        inner = InnerTokenizer.from_str(client.run.tokenizer.tokenizer_json)  # which parses special tokens
        ids = inner.encode(text, add_special_tokens=False).ids
        tokens = iter([*ids, client.service.chat.eos_ids[0]])
        monkeypatch.setattr(Sampling, "sample", lambda self, logits, *rest: [next(tokens)] * len(logits))

    return script
