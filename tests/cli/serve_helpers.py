"""Shared by the tests of serve."""

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

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
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
