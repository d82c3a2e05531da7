"""What HTTP costs: the service against the bare engine, with the same model, the same requests and as many of them at once.

Random weights, prompts of token ids, greedy, every output of the same length, so only the way there differs. Contestants take
turns, a process each: the engine as a program uses it (``run.engine()``), the service asked for whole answers, and the same
asked for streams. As soon as a request has ended the next one is sent, so that as many run at any time. Wall time is what a
client sees; CPU time is that of the contestant's process alone, which what else runs on the machine changes little.

python benchmarks/serving.py                                   two models, 1, 8 and 32 at once
python benchmarks/serving.py --models tiny --clients 8         one case
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import torch
from timing import apart, ratio, table

from polyhead import Choice, ModelConfig, build, load
from polyhead.config.generation_config import GenerationConfig
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

MODELS = {
    "tiny": {"d_model": 128, "n_heads": 4, "n_layers": 2, "d_ff": 512},
    "small": {"d_model": 384, "n_heads": 6, "n_layers": 6, "d_ff": 1536},
}
GIVEN = 32  # tokens of a prompt


class Turn(NamedTuple):
    """What one turn of a contestant took."""

    wall: float
    cpu: float
    first: list[float]  # seconds from each request to its first token


def main() -> None:
    """Parse, measure case after case, print a table of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{GIVEN} tokens in, {options.new_tokens} out, {options.threads} thread(s), medians of {options.n_rounds} interleaved rounds\n"
    )
    rows = [
        [
            "model",
            "at once",
            "contestant",
            "tokens/s",
            "of the engine's",
            "first token, ms",
            "95 %",
            "CPU, ms per 1000 tokens",
            "of the engine's",
        ]
    ]
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            words = make(name, folder)
            rows += cases(argparse.Namespace(**vars(options), folder=folder, model=name, words=words))
    print("\n" + table(rows))


def make(name: str, folder: str) -> int:
    """Write a run directory with random weights that never ends a text by itself; the size of its vocabulary."""
    words = [f"{a}{b}{c}" for a, b, c in product("bdfgklmn", "aeiou", "prstvz")]
    tokenizer = train_tokenizer([" ".join(words)] * 2, Choice("bpe"), 1000)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, max_len=512, tie_embeddings="none", **MODELS[name]
    )
    model = build(config, seed=1)
    with torch.no_grad():
        model.head.weight[tokenizer.eos_id] = 0  # some other token is always likelier than that
    Run(model, tokenizer, GenerationConfig()).save(Path(folder))
    return tokenizer.vocab_size


def cases(options: argparse.Namespace) -> list[list[str]]:
    """The rows of one model."""
    rows = []
    with service(options) as (url, process):
        for clients in options.clients:
            requests = max(4, 2 * clients)
            case = argparse.Namespace(**vars(options) | {"clients": clients, "requests": requests})
            with apart({"engine": engine_of}, case) as calls:
                contestants: dict[str, Callable[[], Turn]] = {
                    "engine": lambda calls=calls: Turn(*calls["engine"]()),  # type: ignore[misc]
                    "service, whole": lambda case=case: asked(url, process, case, False),  # type: ignore[misc]
                    "service, streamed": lambda case=case: asked(url, process, case, True),  # type: ignore[misc]
                }
                turns: dict[str, list[Turn]] = {name: [] for name in contestants}
                for _ in range(options.n_rounds + 1):
                    for name, run in contestants.items():
                        turns[name].append(run())
            for name in turns:
                del turns[name][0]  # the first is to warm up
            tokens = requests * options.new_tokens
            for name, own in turns.items():
                walls, cpus = [t.wall for t in own], [t.cpu for t in own]
                times = (
                    ratio([t.wall for t in turns["engine"]], walls),
                    ratio(cpus, [t.cpu for t in turns["engine"]]),
                )
                first = sorted(x for t in own for x in t.first)
                told = (
                    [f"{1000 * statistics.median(first):.1f}", f"{1000 * first[int(0.95 * len(first))]:.1f}"]
                    if first
                    else ["-", "-"]
                )
                rows.append([options.model, str(clients), name, f"{tokens / statistics.median(walls):,.0f}", f"{times[0]:.2f}", *told,
                             f"{1e6 * statistics.median(cpus) / tokens:.0f}", f"{times[1]:.2f}"])  # fmt: skip
                print(" | ".join(rows[-1]), flush=True)
    return rows


def prompts(vocab_size: int, number: int) -> list[list[int]]:
    """Prompts of which none begins as another."""
    drawn = torch.Generator().manual_seed(1)
    return [torch.randint(10, vocab_size, (GIVEN,), generator=drawn).tolist() for _ in range(number)]


def engine_of(options: argparse.Namespace) -> Callable[[], tuple[float, float, list[float]]]:
    """The bare engine in its process."""
    tune_malloc()
    torch.set_num_threads(options.threads)
    run = load(options.folder, fast=True)

    def measure() -> tuple[float, float, list[float]]:
        engine, waiting = run.engine(rows=128), prompts(options.words, options.requests)
        wall, cpu, begun, first = time.perf_counter(), time.process_time(), {}, []
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < options.clients:
                stream = engine.submit(waiting.pop(), temperature=0, max_new_tokens=options.new_tokens)
                running.append(stream)
                begun[id(stream)] = time.perf_counter()
            engine.engine.step()
            for stream in list(running):
                if list(stream.news()) and id(stream) in begun:
                    first.append(time.perf_counter() - begun.pop(id(stream)))
                if stream.request.end is not None:
                    assert len(stream.tokens[0]) == options.new_tokens
                    running.remove(stream)
        return time.perf_counter() - wall, time.process_time() - cpu, first

    return measure


@contextmanager
def service(options: argparse.Namespace) -> Iterator[tuple[str, psutil.Process]]:
    """``polyhead serve`` in its process, as its users start it."""
    command = [
        sys.executable,
        "-m",
        "polyhead",
        "serve",
        options.folder,
        "--port",
        "0",
        "--threads",
        str(options.threads),
        "--no-log",
        "--name",
        "it",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.stdout.readline().split()[-1], psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def asked(url: str, process: psutil.Process, options: argparse.Namespace, stream: bool) -> Turn:
    """Requests to the service, so many at once, each client on one connection."""
    before, wall = sum(process.cpu_times()[:2]), time.perf_counter()
    first = asyncio.run(flood(url, options, stream))
    return Turn(time.perf_counter() - wall, sum(process.cpu_times()[:2]) - before, first)


async def flood(url: str, options: argparse.Namespace, stream: bool) -> list[float]:
    """Send them all; seconds to the first event of each, where there are events."""
    place, waiting, first = urlsplit(url), prompts(options.words, options.requests), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        while waiting:
            body = json.dumps(
                {
                    "prompt": waiting.pop(),
                    "max_tokens": options.new_tokens,
                    "temperature": 0,
                    "stream": stream,
                }
            ).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            begun = time.perf_counter()
            writer.write(head.encode() + body)
            told = await reader.readuntil(b"\r\n\r\n")
            assert told.startswith(b"HTTP/1.1 200"), told
            if stream:
                await reader.readuntil(b"data: ")
                first.append(time.perf_counter() - begun)
                await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
                continue
            length = next(
                int(line[15:]) for line in told.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            answer = json.loads(await reader.readexactly(length))
            assert answer["usage"]["completion_tokens"] == options.new_tokens
        writer.close()

    await asyncio.gather(*(client() for _ in range(options.clients)))
    return first


if __name__ == "__main__":
    main()
