"""The HTTP service: what HTTP costs, and what happens under load.

./dev bench serving NAME [...]    one of http, load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import psutil
import torch
from _shared import apart, ratio, run_measurement, table

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.run.run import Run
from polyhead.serve.limits import Limits
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


def http(parser: argparse.ArgumentParser) -> None:
    """What HTTP costs: the service against the bare engine, with the same model, the same requests and as
    many of them at once.

    Random weights, prompts of token ids, greedy, every output of the same length, so only the way there
    differs. Contestants take
    turns, a process each: the engine as a program uses it (``run.engine()``), the service asked for whole
      answers, and the same
    asked for streams. As soon as a request has ended the next one is sent, so that as many run at any time.
    Wall time is what a client sees; CPU time is that of the contestant's process alone, which what else runs
    on the machine changes little.

    ./dev bench serving http                                   two models, 1, 8 and 32 at once
    ./dev bench serving http --models tiny --clients 8         one case
    """
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{GIVEN} tokens in, {options.new_tokens} out, {options.threads} thread(s), medians of "
        f"{options.rounds} interleaved rounds\n"
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
    """Write a run directory with random weights that never ends a text by itself; the size of its
    vocabulary.
    """
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
                    "service, whole": lambda case=case: asked(url, process, case, False),
                    # type: ignore[misc]
                    "service, streamed": lambda case=case: asked(url, process, case, True),
                    # type: ignore[misc]
                }
                turns: dict[str, list[Turn]] = {name: [] for name in contestants}
                for _ in range(options.rounds + 1):
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
                rows.append([options.model, str(clients), name, f"{tokens / statistics.median(walls):,.0f}",
                    f"{times[0]:.2f}", *told,
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
    run = ph.load(options.folder, fast=True)

    def measure() -> tuple[float, float, list[float]]:
        engine, waiting = run.engine(max_num_seqs=128), prompts(options.words, options.requests)
        wall, cpu, begun, first = time.perf_counter(), time.process_time(), {}, []
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < options.clients:
                stream = engine.submit(waiting.pop(), temperature=0, max_new_tokens=options.new_tokens)
                running.append(stream)
                begun[id(stream)] = time.perf_counter()
            engine.engine.step()
            for stream in list(running):
                if list(stream.drain_deltas()) and id(stream) in begun:
                    first.append(time.perf_counter() - begun.pop(id(stream)))
                if stream.request.finish_status is not None:
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
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
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


PROBE, COUNT = 0.1, 1.0  # seconds between two questions for health, and two counts

FACTOR = 2.0  # of the rate that was served


@dataclass
class Phase:
    """What was seen of one kind of load."""

    ends: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)  # seconds to the first token of those accepted
    refused: list[float] = field(default_factory=list)  # to a 429
    health: list[float] = field(default_factory=list)
    counts: list[tuple[float, int, int, int]] = field(default_factory=list)  # seconds, bytes, files, threads
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of processor time of the service

    @property
    def rate(self) -> float:
        """Requests served a second."""
        return self.ends["served"] / self.seconds


def load(parser: argparse.ArgumentParser) -> None:
    """A service under load that does not end, and under twice the load that it can bear: is anything lost,
    does anything grow?

    First as many streams at once as ``--streams`` says, each followed by the next as soon as it has ended;
    then requests that come by chance (a Poisson process) at twice the rate that was served before, whoever
    still waits. Every request must have one
    end: all of its tokens and one [DONE], or a 429 at once. Meanwhile somebody asks for the service's
      health ten times a second, and
    its memory, files and threads are counted.

    ./dev bench serving load                                      10 and 5 minutes
    ./dev bench serving load --held 60 --beyond 30 --streams 64   shorter
    """
    parser.add_argument("--model", choices=["tiny", "small"], default="tiny")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--held", type=float, default=600, help="seconds of that many streams")
    parser.add_argument("--beyond", type=float, default=300, help="seconds of twice what can be served")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = make(options.model, folder)
        given = argparse.Namespace(**vars(options), folder=folder, words=words)
        with service(given) as (url, process):
            asyncio.run(apply_load(given, urlsplit(url), process))


async def apply_load(options: argparse.Namespace, place: SplitResult, process: psutil.Process) -> None:
    """Both kinds of load, and what is left of them afterwards."""
    texts = prompts(options.words, 997)
    bodies = [
        json.dumps(
            {"prompt": text, "max_tokens": options.new_tokens, "temperature": 0, "stream": True}
        ).encode()
        for text in texts
    ]
    held = await watched(
        place, process, options.held, lambda phase, until: hold_streams(options, place, bodies, phase, until)
    )
    rate = FACTOR * held.rate
    beyond = await watched(
        place, process, options.beyond, lambda phase, until: rain(options, place, bodies, rate, phase, until)
    )
    await asyncio.sleep(2 * COUNT)
    left = await gauges(place)
    print(f"{options.model}: {GIVEN} tokens in, {options.new_tokens} out; {options.streams} streams for "
          f"{held.seconds:.0f} s, "
          f"then {rate:.1f} requests a second for {beyond.seconds:.0f} s\n")  # fmt: skip
    bound = (Limits().max_queue + 128) / held.rate  # seconds until the last of those who wait has its turn
    rows = [["", "held", "beyond", "wanted"]]

    def row(name: str, of: Callable[[Phase], str], wanted: str) -> None:
        rows.append([name, of(held), of(beyond), wanted])

    row("requests served whole", lambda p: f"{p.ends['served']:,}", "")
    row("refused with 429", lambda p: f"{p.ends['429']:,}", "none; some")
    row(
        "lost, broken or otherwise ended",
        lambda p: ", ".join(f"{n} {how}" for how, n in p.ends.items() if how not in ("served", "429")) or "0",
        "0",
    )
    row("tokens a second", lambda p: f"{p.rate * options.new_tokens:,.0f}", "90 % of the first")
    row(
        "CPU, ms per 1,000 tokens",
        lambda p: f"{1e6 * p.cpu / (p.ends['served'] * options.new_tokens):.0f}",
        "",
    )
    row("first token, ms, median and 99 %", lambda p: both(p.first), f"below {1000 * bound:,.0f}")
    row("a refusal, ms, median and 99 %", lambda p: both(p.refused), "below 50")
    row("health, ms, median and 99 %", lambda p: both(p.health), "below 100")
    row("memory, MiB a minute", lambda p: f"{slope(p.counts) / 2**20:+.2f}", "below 1")
    row(
        "open files, threads: most",
        lambda p: f"{max(c[2] for c in p.counts)}, {max(c[3] for c in p.counts)}",
        "",
    )
    print(table(rows))
    print(f"\nleft when all had ended: {', '.join(f'{name} {value:g}' for name, value in left.items())}; "
          f"{process.num_fds()} files, {process.num_threads()} threads")  # fmt: skip


async def watched(
    place: SplitResult,
    process: psutil.Process,
    seconds: float,
    work: Callable[[Phase, float], Awaitable[None]],
) -> Phase:
    """Do the work for so many seconds, and look at the service meanwhile."""
    phase, started, before = Phase(), time.perf_counter(), sum(process.cpu_times()[:2])

    async def ask() -> None:
        while True:
            begun = time.perf_counter()
            await get(place, "/health")
            phase.health.append(time.perf_counter() - begun)
            await asyncio.sleep(PROBE)

    async def count() -> None:
        while True:
            held = process.memory_info().rss, process.num_fds(), process.num_threads()
            phase.counts.append((time.perf_counter() - started, *held))
            await asyncio.sleep(COUNT)

    others = [asyncio.create_task(one()) for one in (ask, count)]
    await work(phase, started + seconds)
    phase.seconds, phase.cpu = time.perf_counter() - started, sum(process.cpu_times()[:2]) - before
    for other in others:
        other.cancel()
    return phase


async def hold_streams(
    options: argparse.Namespace, place: SplitResult, bodies: Sequence[bytes], phase: Phase, until: float
) -> None:
    """So many clients, each of which asks again as soon as it has its answer."""

    async def client(i: int) -> None:
        while time.perf_counter() < until:
            await one(options, place, bodies[i % len(bodies)], phase)
            i += options.streams

    await asyncio.gather(*(client(i) for i in range(options.streams)))


async def rain(
    options: argparse.Namespace,
    place: SplitResult,
    bodies: Sequence[bytes],
    rate: float,
    phase: Phase,
    until: float,
) -> None:
    """Clients that come by chance, so many a second."""
    chance, running, i = random.Random(1), set(), 0
    due = time.perf_counter()
    while due < until:
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(options, place, bodies[i % len(bodies)], phase))
        running.add(task)
        task.add_done_callback(running.discard)
        i += 1
    await asyncio.gather(*running)


async def one(options: argparse.Namespace, place: SplitResult, body: bytes, phase: Phase) -> None:
    """A request on a connection of its own, to its end."""
    begun = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
            f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        told = await reader.readuntil(b"\r\n\r\n")
        if told.startswith(b"HTTP/1.1 429"):
            phase.refused.append(time.perf_counter() - begun)
            phase.ends["429"] += 1
        elif not told.startswith(b"HTTP/1.1 200"):
            phase.ends[told.split(b"\r\n")[0].decode()] += 1
        else:
            start = await reader.readuntil(b"data: ")
            phase.first.append(time.perf_counter() - begun)
            phase.ends[judged(start + await reader.read(-1), options.new_tokens)] += 1
        writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        phase.ends[type(error).__name__] += 1


def judged(stream: bytes, tokens: int) -> str:
    """Whether a stream (chunked) has all that it should, once."""
    events = stream.split(b"data: ")[1:]
    if (
        stream.count(b"[DONE]") != 1
        or not events[-1].startswith(b"[DONE]")
        or not stream.endswith(b"0\r\n\r\n")
    ):
        return "without an end"
    ends = stream.count(b'"finish_reason":"length"')
    return "served" if ends == 1 else f"{ends} reasons"


async def get(place: SplitResult, path: str) -> bytes:
    """The body of an answer."""
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read(-1)
    writer.close()
    return answer.split(b"\r\n\r\n", 1)[1]


async def gauges(place: SplitResult) -> dict[str, float]:
    """What runs, waits and is held, as the service measures itself."""
    lines = [
        line.split()
        for line in (await get(place, "/metrics")).decode().splitlines()
        if line and line[0] != "#"
    ]
    wanted = ("requests_running", "requests_waiting", "kv_tokens")
    return {
        name: float(value) for key, value, *_ in lines for name in wanted if key.split("{")[0].endswith(name)
    }


def both(seconds: Sequence[float]) -> str:
    """Median and 99th percentile in milliseconds."""
    if not seconds:
        return "-"
    ranked = sorted(seconds)
    return f"{1000 * statistics.median(ranked):.1f}, {1000 * ranked[int(0.99 * len(ranked))]:.1f}"


def slope(counts: Sequence[tuple[Any, ...]]) -> float:
    """Bytes a minute, by a straight line through all after the first third."""
    kept = counts[len(counts) // 3 :]
    if len(kept) < 3:
        return 0.0
    return 60 * statistics.linear_regression([c[0] for c in kept], [c[1] for c in kept]).slope


if __name__ == "__main__":
    run_measurement(__doc__ or "", http, load)
