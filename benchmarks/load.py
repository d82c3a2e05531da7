"""A service under load that does not end, and under twice the load that it can bear: is anything lost, does anything grow?

First as many streams at once as ``--streams`` says, each followed by the next as soon as it has ended; then requests that come
by chance (a Poisson process) at twice the rate that was served before, whoever still waits. Every request must have one
end: all of its tokens and one [DONE], or a 429 at once. Meanwhile somebody asks for the service's health ten times a second, and
its memory, files and threads are counted.

python benchmarks/load.py                                      10 and 5 minutes
python benchmarks/load.py --held 60 --beyond 30 --streams 64   shorter
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import psutil
from serving import GIVEN, make, prompts, service
from timing import table

from polyhead.serve.http.limits import Limits

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


def main() -> None:
    """Parse, load, print what was seen beside what is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
            asyncio.run(load(given, urlsplit(url), process))


async def load(options: argparse.Namespace, place: SplitResult, process: psutil.Process) -> None:
    """Both kinds of load, and what is left of them afterwards."""
    texts = prompts(options.words, 997)
    bodies = [
        json.dumps(
            {"prompt": text, "max_tokens": options.new_tokens, "temperature": 0, "stream": True}
        ).encode()
        for text in texts
    ]
    held = await watched(
        place, process, options.held, lambda phase, until: flood(options, place, bodies, phase, until)
    )
    rate = FACTOR * held.rate
    beyond = await watched(
        place, process, options.beyond, lambda phase, until: rain(options, place, bodies, rate, phase, until)
    )
    await asyncio.sleep(2 * COUNT)
    left = await gauges(place)
    print(f"{options.model}: {GIVEN} tokens in, {options.new_tokens} out; {options.streams} streams for {held.seconds:.0f} s, "
          f"then {rate:.1f} requests a second for {beyond.seconds:.0f} s\n")  # fmt: skip
    bound = (Limits.max_queue + 128) / held.rate  # seconds until the last of those who wait has its turn
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


async def flood(
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
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
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
    main()
