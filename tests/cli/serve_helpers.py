"""A service in a process of its own, and streams from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from tests.cli.cli_helpers import save_run

from polyhead.config.generation_config import GenerationConfig
from polyhead.serve.http.server import Server
from polyhead.serve.http.sockets import get_url, listen
from polyhead.serve.openai.routes import make_app
from polyhead.serve.service import Service

LONG = {"prompt": "dogs", "max_tokens": 400, "stop": ["never"], "truncate": True, "seed": 1, "stream": True}


@pytest.fixture(scope="module")
def endless_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run whose outputs do not end by themselves."""
    directory = tmp_path_factory.mktemp("runs") / "endless"
    run = save_run(directory, ["two dogs bark .", "a dog barks ."], kind="decoder", tie_embeddings="none")
    with torch.no_grad():
        run.model.head.weight *= 0.01
    run.generation = GenerationConfig(logit_bias={run.tokenizer.eos_id: -100})
    run.save(directory)
    return directory


class Process:
    """A service in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.lines = [process.stdout.readline(), process.stdout.readline()]
        assert self.lines[1].startswith("ready at "), (self.lines, process.communicate()[1])
        self.url = self.lines[1].split()[-1]
        self.http = httpx2.Client(base_url=self.url, timeout=200, trust_env=False)

    def streams(self, number: int, **changes: Any) -> list[Stream]:
        """Streams of which the first piece has arrived."""
        return [Stream(self.url, LONG | changes) for _ in range(number)]

    def end(self) -> tuple[int, str]:
        """Wait for the exit code, and return it with the standard error."""
        _, log = self.process.communicate(timeout=200)
        return self.process.returncode, log


class Stream:
    """A streamed response that a thread reads; its first piece has arrived when this is made."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.text, has_started = "", threading.Event()

        def read() -> None:
            options = {"json": body, "timeout": 200, "trust_env": False}
            try:
                with httpx2.stream("POST", f"{url}/v1/completions", **options) as response:
                    for piece in response.iter_text():
                        self.text += piece
                        has_started.set()
            except httpx2.TransportError:
                self.text += "cut"
            has_started.set()

        self.thread = threading.Thread(target=read, daemon=True)
        self.thread.start()
        assert has_started.wait(200)

    def read_all(self) -> str:
        self.thread.join(200)
        return self.text


@contextmanager
def serve_process(directory: Path, *options: str) -> Iterator[Process]:
    """Run `polyhead serve` with one thread on a free port."""
    arguments = ["serve", str(directory), "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "polyhead", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serve_in_thread(service: Service) -> Iterator[httpx2.Client]:
    """Run the server of a service in a thread of this process; a client of it."""
    sock, ready = listen("127.0.0.1", 0), threading.Event()
    server = Server(make_app(service), ready.set)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    assert ready.wait(200)
    try:
        with httpx2.Client(base_url=get_url(sock), timeout=200, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(200)
        service.close()
