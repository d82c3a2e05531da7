"""The service as a process of its own: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.extras import install_command
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LONG = {
    "prompt": "dogs",
    "max_tokens": 400,
    "stop": ["never said"],
    "truncate": True,
    "seed": 1,
    "stream": True,
}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose texts never end."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["two dogs bark .", "a dog barks ."] * 20, Choice("bpe"), 280)
    config = ModelConfig(
        kind="decoder",
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        n_heads=2,
        n_layers=1,
        max_len=64,
        tie_embeddings="none",
    )
    model = build(config, seed=1)
    with torch.no_grad():
        model.head.weight *= 0.01
    directory = tmp_path_factory.mktemp("runs") / "speaker"
    Run(model, tokenizer, GenerationConfig(logit_bias={tokenizer.eos_id: -100})).save(directory)
    return directory


class Process:
    """A service that runs in a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.said = [process.stdout.readline(), process.stdout.readline()]
        assert self.said[1].startswith("ready at "), (self.said, process.communicate()[1])
        self.url = self.said[1].split()[-1]
        self.http = httpx2.Client(base_url=self.url, timeout=60, trust_env=False)

    def streams(self, number: int, **changes: Any) -> list[Stream]:
        """Streams that have begun."""
        return [Stream(self.url, LONG | changes) for _ in range(number)]

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it wrote on standard error."""
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


class Stream:
    """An answer that is read in a thread; it has begun when this is made."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.text, begun = "", threading.Event()

        def read() -> None:
            try:
                with httpx2.stream(
                    "POST", f"{url}/v1/completions", json=body, timeout=60, trust_env=False
                ) as answer:
                    for piece in answer.iter_text():
                        self.text += piece
                        begun.set()
            except httpx2.TransportError:
                self.text += "cut"
            begun.set()

        self.thread = threading.Thread(target=read, daemon=True)
        self.thread.start()
        assert begun.wait(60)

    def whole(self) -> str:
        self.thread.join(60)
        return self.text


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[Process]:
    command = [
        sys.executable,
        "-m",
        "polyhead",
        "serve",
        str(directory),
        "--port",
        "0",
        "--threads",
        "1",
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.acceptance("E9", "R10")
def test_told_to_stop_it_finishes_what_it_accepted_and_takes_nothing_new(speaker: Path) -> None:
    with serving(speaker) as service:
        assert service.said[0] == "speaker (decoder): /v1/completions, /v1/score, /v1/embeddings\n"
        streams = service.streams(3)
        os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while service.http.get("/health/ready").status_code == 200:
            assert time.monotonic() < deadline
        refused = service.http.post("/v1/completions", json={"prompt": "dogs"})
        assert (
            refused.status_code == 503
            and refused.json()["error"]["code"] == "shutting_down"
            and refused.headers["retry-after"]
        )
        assert service.http.get("/health/live").status_code == 200
        for stream in streams:
            events = stream.whole().split("\n\n")
            assert events[-2] == "data: [DONE]"
            assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        code, log = service.end()
        assert code == 0 and "Traceback" not in log
        assert log.count("POST /v1/completions 200") == 3 and "dogs" not in log


@pytest.mark.acceptance("E9")
def test_told_twice_it_stops_at_once_and_leaves_no_child(speaker: Path) -> None:
    with serving(speaker, "--max-tokens", "100000") as service:
        (stream,) = service.streams(1, max_tokens=100_000)
        children = psutil.Process(service.process.pid).children(recursive=True)
        os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while service.http.get("/health/ready").status_code == 200:
            assert time.monotonic() < deadline
        os.kill(service.process.pid, signal.SIGTERM)
        assert service.end()[0] == 128 + signal.SIGTERM
        assert "[DONE]" not in stream.whole()
        assert not [child for child in children if child.is_running()]


@pytest.mark.acceptance("E9")
def test_what_does_not_end_within_the_grace_is_told_so(speaker: Path) -> None:
    with serving(speaker, "--grace", "0.3", "--max-tokens", "100000") as service:
        (stream,) = service.streams(1, max_tokens=100_000)
        service.process.send_signal(signal.SIGINT)
        events = stream.whole().split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert service.end()[0] == 0


@pytest.mark.acceptance("E9", "R10")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_told_to_stop_at_any_moment_no_accepted_request_is_lost(speaker: Path) -> None:
    for delay in range(10):
        with serving(speaker) as service:
            streams = service.streams(4, max_tokens=30 + 20 * delay)
            time.sleep(0.03 * delay)
            os.kill(service.process.pid, signal.SIGTERM)
            assert all(stream.whole().endswith("data: [DONE]\n\n") for stream in streams)
            assert service.end()[0] == 0


@pytest.mark.parametrize("log", ["--log", "--no-log"])
def test_a_run_whose_guesses_have_no_effect_is_told_so_at_the_start(
    speaker: Path, tmp_path: Path, log: str
) -> None:
    said = "polyhead: generation.speculate of this run (lookup) has no effect here"
    run = load(speaker)
    settings = GenerationConfig(speculate=Choice("lookup"), max_new_tokens=5)
    Run(run.model, run.tokenizer, settings).save(tmp_path / "guessing")
    for directory, wanted in ((tmp_path / "guessing", 1), (speaker, 0)):
        with serving(directory, log) as service:
            service.http.post("/v1/completions", json={"prompt": "dogs", "max_tokens": 1})
            service.process.send_signal(signal.SIGTERM)
            code, told = service.end()
            assert code == 0 and told.count(said) == wanted


def test_keys_come_from_a_file_or_the_environment(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("first-key-of-this-service\n")
    monkeypatch.setenv("POLYHEAD_API_KEY", "other-key-of-this-service")
    with serving(speaker, "--api-key-file", str(tmp_path / "keys"), "--name", "mine") as service:
        assert service.http.get("/v1/models").status_code == 401
        for key in ("first-key-of-this-service", "other-key-of-this-service"):
            answer = service.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.json()["data"][0]["id"] == "mine"


def test_what_cannot_be_served_is_told_in_a_line(
    speaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ([str(speaker), "--port", port], f"port {port} is taken"),
            ([str(speaker), "--host", "0.0.0.0"], "0.0.0.0 can be reached by others: give --api-key-file"),
            (
                [str(speaker), "--host", "no.such.host.invalid", "--api-key-file", str(tmp_path / "none")],
                "No such file",
            ),
            ([str(tmp_path / "nothing"), "--port", "0"], "no run directory"),
            ([str(speaker), "--port", "0", "--grace", "0"], "shutdown_timeout is 0.0, wanted more than 0"),
            ([str(speaker), "--port", "0", "--cache", "pagd"], "did you mean 'paged'?"),
        ):
            assert main(["serve", *arguments]) == 2
            err = capsys.readouterr().err
            assert said in err and err.count("\n") == 1, err


def test_without_its_extra_it_says_what_to_install(speaker: Path) -> None:
    code = f"import sys; sys.modules['uvicorn'] = None; from polyhead.cli import main; sys.exit(main(['serve', {str(speaker)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        f"polyhead: this needs uvicorn: {install_command('serve')}\n",
    )
