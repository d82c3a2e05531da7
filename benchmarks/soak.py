"""A service and trainings beside each other for hours, with faults among what they meet: does anything grow,
is anything lost?

Requests of all kinds come by chance (a Poisson process), far below what the service bears. One in a hundred
is a fault: a client that leaves, before it has asked or while it is answered; one that stops reading, or
sends nothing; what is no HTTP, no JSON, too large, or asks for what is not there. Every other request must be
answered whole. Meanwhile trainings
run: each is interrupted (Ctrl-C) after about ten minutes, and the next process goes on from its checkpoint.
  Of every process
memory, files and threads are counted; of files those that are no connection, because these come and go with
the clients.

./dev bench soak                          two hours
./dev bench soak --minutes 10 --turn 2    shorter
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import psutil
from _shared import table
from serving import gauges, judged, make, prompts, service, slope

FAULTS = 0.01  # of all requests
BUSY = "refused, as too many waited"  # where other work leaves the service too little of the machine
NEW, LONG = 64, 400  # tokens of an answer, and of one that nobody reads
CUT = 60.0  # seconds in which who stops reading or sending must have been cut off
RECIPE = """\
task: language-model
data: {train: text.txt, valid_fraction: 0.05, max_len: 64}
tokenizer: {kind: char}
model: {d_model: 64, n_layers: 2, n_heads: 2, max_len: 64}
train: {steps: 100000000, max_tokens: 1024, eval_every: 100, save_every: 100, threads: 1, ema: 0.99}
"""


class Count(NamedTuple):
    """What a process held at some second."""

    second: float
    nbytes: int
    files: int  # no connections among them
    threads: int


def main() -> None:
    """Parse, soak, print what was seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--turn", type=float, default=10, help="minutes until a training is interrupted")
    parser.add_argument("--rate", type=float, default=20, help="requests a second")
    parser.add_argument("--every", type=float, default=2, help="seconds between two counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = make("tiny", folder)
        given = argparse.Namespace(**vars(options), threads=1, folder=folder, words=words)
        with service(given) as (url, process):
            asyncio.run(soak(given, urlsplit(url), process))


async def soak(options: argparse.Namespace, place: SplitResult, process: psutil.Process) -> None:
    """Both for so long, then what is left."""
    ends: Counter[str] = Counter()
    counts: list[Count] = []
    turns: list[list[Count]] = []
    until = time.perf_counter() + 60 * options.minutes
    watch = asyncio.create_task(watched(process, options.every, counts))
    await asyncio.gather(
        rain(options, place, ends, until), trained(options, turns, Path(options.folder) / "work", until)
    )
    watch.cancel()
    left = await gauges(place)
    faults = {name for name, _ in MISTAKES}
    print(f"{options.minutes:g} minutes, {options.rate:g} requests a second, {FAULTS:.0%} of them faults\n")
    print(
        table(
            [
                ["requests", ""],
                ["answered whole", f"{ends.pop('answered'):,}"],
                [BUSY, f"{ends.pop(BUSY, 0):,}"],
                *([name, f"{ends.pop(name):,}"] for name in sorted(faults & set(ends))),
                ["ended in any other way", ", ".join(f"{n} {how}" for how, n in ends.items()) or "0"],
            ]
        )
    )
    rows = [
        [
            "process",
            "minutes",
            "MiB at first and last",
            "MiB an hour",
            "files a minute, least and most",
            "threads, least and most",
        ],
        told("service", counts),
        *(told(f"training {i}", turn) for i, turn in enumerate(turns, 1)),
    ]
    print("\n" + table(rows))
    print(f"\nupdates: {updates(Path(options.folder) / 'work')}")
    print(
        f"left in the service: {', '.join(f'{name} {value:g}' for name, value in left.items())}; "
        f"{len(process.net_connections('tcp')) - 1} connections"
    )


def told(name: str, counts: list[Count]) -> list[str]:
    """A row of a process, but for its first fifth, in which it finds its size."""
    settled = counts[len(counts) // 5 :]
    # files and connections are not counted in one moment, so a single count may be wrong either way
    minutes = groupby(settled, lambda c: int(c.second // 60))
    files = [round(statistics.median(c.files for c in own)) for _, own in minutes]
    threads = [c.threads for c in settled]
    return [
        name,
        f"{(counts[-1].second - counts[0].second) / 60:.1f}",
        f"{_mib(settled[: len(settled) // 5 + 1])} {_mib(settled[-(len(settled) // 5) - 1 :])}",
        f"{60 * slope(counts) / 2**20:+.1f}",
        f"{min(files)} {max(files)}",
        f"{min(threads)} {max(threads)}",
    ]


def _mib(counts: list[Count]) -> str:
    return f"{statistics.median(c.nbytes for c in counts) / 2**20:.1f}"


async def watched(process: psutil.Process, every: float, counts: list[Count]) -> None:
    """Count what a process holds, until it is no more or nobody wants to know."""
    while True:
        try:
            files = process.num_fds() - len(process.net_connections("tcp"))
            counts.append(Count(time.perf_counter(), process.memory_info().rss, files, process.num_threads()))
        except psutil.Error:
            return
        await asyncio.sleep(every)


async def trained(options: argparse.Namespace, turns: list[list[Count]], folder: Path, until: float) -> None:
    """Trainings one after another, each from where the one before was interrupted."""
    folder.mkdir()
    words = ["".join(parts) for parts in product("bdfgklmn", "aeiou", "prstvz")]
    chance = random.Random(1)
    (folder / "text.txt").write_text(
        "".join(f"{' '.join(chance.choices(words, k=8))}\n" for _ in range(5000))
    )
    (folder / "soak.yaml").write_text(RECIPE)
    while time.perf_counter() < until:
        command = [sys.executable, "-m", "polyhead", "train", "soak.yaml", "out=run"]
        process = subprocess.Popen(
            command + ["--resume"] * bool(turns),
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        said = asyncio.create_task(asyncio.to_thread(process.stderr.read))
        turns.append([])
        watch = asyncio.create_task(watched(psutil.Process(process.pid), options.every, turns[-1]))
        minutes = 60 * options.turn * chance.uniform(0.8, 1.2)
        await asyncio.sleep(max(30.0, min(minutes, until - time.perf_counter())))
        watch.cancel()
        process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(process.wait)
        if code != 130:
            sys.exit(f"a training ended with {code}: {(await said).decode()[-2000:]}")


def updates(folder: Path) -> str:
    """What the trainings wrote: how many updates, and that none is missing or twice."""
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seen = [row["step"] for row in rows if row["split"] == "valid"]
    if not seen:
        return f"{max((row['step'] for row in rows), default=0):,}; no evaluation yet"
    missing = set(range(seen[0], seen[-1] + 1, 100)) - set(seen)
    return (
        f"{seen[-1]:,}; {len(seen):,} evaluations, {len(seen) - len(set(seen))} twice, {len(missing)} missing"
    )


async def rain(options: argparse.Namespace, place: SplitResult, ends: Counter[str], until: float) -> None:
    """Clients that come by chance, so many a second."""
    chance, running = random.Random(2), set()
    known = prompts(options.words, 97)
    due = time.perf_counter()
    while due < until:
        due += chance.expovariate(options.rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if chance.random() < FAULTS:
            name, mistake = chance.choice(MISTAKES)
            work = faulty(place, name, mistake, ends)
        else:
            work = right(place, chance.choice(known), chance.random(), ends)
        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def right(place: SplitResult, prompt: list[int], kind: float, ends: Counter[str]) -> None:
    """A request that deserves an answer: a stream, a whole text, tokens of a text, or the service's state."""
    body: dict[str, object] = {
        "prompt": prompt,
        "max_tokens": NEW,
        "temperature": 0,
        "stream": kind < 0.6,
    }
    if kind < 0.8:
        answer = await ask(place, "/v1/completions", body)
        if b" 429 " in answer[:20]:
            ends[BUSY] += 1
            return
        if kind < 0.6:
            ends["answered" if judged(answer, NEW) == "served" else judged(answer, NEW)] += 1
            return
        good = b" 200 " in answer[:20] and json.loads(content(answer))["usage"]["completion_tokens"] == NEW
    elif kind < 0.9:
        answer = await ask(place, "/tokenize", {"prompt": "baragat mofis"})
        good = b" 200 " in answer[:20] and bool(json.loads(content(answer)))
    else:
        answer = await ask(place, ("/health", "/metrics", "/v1/models", "/")[int(40 * kind) % 4])
        good = b" 200 " in answer[:20] and bool(content(answer))
    ends["answered" if good else answer[:40].decode("latin-1")] += 1


async def ask(place: SplitResult, path: str, body: object = None) -> bytes:
    """The whole answer to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(request(path, body))
    answer = await reader.read(-1)
    writer.close()
    return answer


def request(path: str, body: object = None) -> bytes:
    """A request as bytes; what is bytes already is the body as it is."""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


def content(answer: bytes) -> bytes:
    """What follows the head."""
    return answer.partition(b"\r\n\r\n")[2]


Mistake = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


async def faulty(place: SplitResult, name: str, mistake: Mistake, ends: Counter[str]) -> None:
    """A fault, and whether it ended as it should."""
    # small buffers, here and in the system, so that who does not read is noticed
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (place.hostname, place.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**10)
    try:
        async with asyncio.timeout(CUT):
            good = await mistake(reader, writer)
    except TimeoutError:
        good = False
    except ConnectionError:
        good = name in CUT_OFF
    except asyncio.IncompleteReadError as error:
        good, name = False, f"{name} ({error.partial[:400]!r})"
    writer.transport.abort()
    ends[name if good else f"{name}: otherwise"] += 1


def answered(raw: bytes, code: int) -> Mistake:
    """A request that is refused with that code."""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(raw)
        told = await reader.readline()
        return bool(re.match(rb"HTTP/1.1 %d " % code, told))

    return ask


async def leaves_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Gone in the middle of the question."""
    writer.write(request("/v1/completions", {"prompt": "ba", "max_tokens": NEW})[:150])
    await writer.drain()
    return True


async def leaves_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Gone in the middle of the answer."""
    writer.write(request("/v1/completions", {"prompt": "ba", "max_tokens": NEW, "stream": True}))
    return (await reader.readuntil(b"data: ")).startswith(b"HTTP/1.1 200")


async def stops_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Nothing of a megabyte is read for longer than the service waits; it must be cut off by then."""
    body = {"prompt": "ba", "max_tokens": LONG, "n": 8, "logprobs": 5, "seed": 1, "stream": True}
    writer.write(request("/v1/completions", body))
    await asyncio.sleep(0.75 * CUT)
    while piece := await reader.read(2**16):
        if b"[DONE]" in piece:
            return False
    return True


async def sends_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Connected, and no more."""
    return await reader.read(1) == b""


CUT_OFF = {"stopped reading, and was cut off", "sent nothing, and was cut off"}
MISTAKES: list[tuple[str, Mistake]] = [
    ("left while it asked", leaves_early),
    ("left while it was answered", leaves_late),
    ("stopped reading, and was cut off", stops_reading),
    ("sent nothing, and was cut off", sends_nothing),
    ("no HTTP, and was told so", answered(b"\x16\x03\x01 what\r\n\r\n", 400)),
    ("no JSON, and was told so", answered(request("/v1/completions", b'{"prompt": '), 400)),
    ("wrong request, and was told so", answered(request("/v1/completions", {"prompt": 1.5}), 400)),
    ("unknown path, and was told so", answered(request("/v1/nothing", {}), 404)),
    ("too large, and was told so", answered(request("/v1/completions", b" " * (2**21 + 1)), 413)),
]


if __name__ == "__main__":
    main()
