"""The same texts served in the same memory: rows reserved whole, one batch after another or in turns, and pages."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from polyhead.cache.page_size import block_for
from polyhead.errors import UserError
from polyhead.generate.drawing import Drawing, Drawn
from polyhead.generate.engine import Engine
from polyhead.generate.frame import frame
from polyhead.generate.sampling import Sampling
from polyhead.lab.clock import quiet_clock, seconds
from polyhead.lab.subject import Subject
from polyhead.registry import Choice

NEVER = -1  # a token that no model says: outputs end where the texts did
BATCHES, RESERVED, PAGES = (
    "reserved, batch after batch",
    "reserved, joining and leaving",
    "pages, joining and leaving",
)
WAYS = (BATCHES, RESERVED, PAGES)


class Wish(NamedTuple):
    """What one text asks for: tokens to go on from, how many more, and a source if there is one."""

    prompt: list[int]
    new: int
    source: list[int] | None = None

    @property
    def length(self) -> int:
        """Tokens that the cache holds at the end."""
        return len(self.prompt) + self.new


class Memory(NamedTuple):
    """Room for so many rows of the longest text, and the block of pages of the same room."""

    rows: int
    longest: int
    block: int

    @property
    def blocks(self) -> int:
        return self.rows * self.longest // self.block


class Served(NamedTuple):
    """How long each way took, and how many texts it had at work."""

    seconds: dict[str, list[float]]  # of each round
    rows: dict[str, float]  # texts that are given a token in a step, mean
    tokens: int  # that were made in a round
    memory: Memory


def wishes(given: Subject, n: int, most: int) -> list[Wish]:
    """The first n texts: the second half of a line after its first, a target after its source; ``most`` tokens at most."""
    run, tokenizer = given.run, given.run.tokenizer
    if given.translates:
        sides, targets = (
            tokenizer.sides,
            given.references[:n] or run.translate(given.texts[:n], beam_size=1, truncate=True),
        )
        pairs = zip(tokenizer.encode(given.texts[:n]), tokenizer.target.encode(targets), strict=True)
        return [
            Wish([sides.start], min(len(b) + 1, most - 1), sides.source(a[: most - sides.most]))
            for a, b in pairs
        ]
    read, own = frame(run.recipe, tokenizer), []
    for ids in tokenizer.encode(given.lines()[: 4 * n]):
        prompt = read.prompt(ids[: most // 2][: len(ids) // 2])
        if len(prompt) > 0 and len(ids) > 1:
            own.append(Wish(prompt, min(len(ids) - len(ids) // 2, most - len(prompt))))
    if not own:
        raise UserError("the text has no line of two tokens or more")
    return own[:n]


def memory_of(asked: Sequence[Wish], rows: int) -> Memory:
    """Room for so many rows of the longest."""
    return Memory(
        rows, max(wish.length for wish in asked), block_for(statistics.fmean(wish.length for wish in asked))
    )


def serve(model: Any, asked: Sequence[Wish], rows: int, rounds: int) -> Served:
    """All wishes to their ends, in each way, in turns."""
    memory, clock = memory_of(asked, rows), quiet_clock()
    seen: dict[str, float] = {}
    taken: dict[str, list[float]] = {how: [] for how in WAYS}

    def run(how: str) -> None:
        engine = Engine(model, max_len=memory.longest, **settings(how, memory))
        seen[how] = through(engine, asked, memory.rows if how == BATCHES else len(asked))

    for turn in range(rounds):
        for how in WAYS[turn % 3 :] + WAYS[: turn % 3]:
            taken[how].append(seconds(partial(run, how), clock))
    return Served(taken, seen, sum(wish.new for wish in asked), memory)


def settings(how: str, memory: Memory) -> dict[str, Any]:
    """The engine of each way: so many rows, or so many pages."""
    if how == PAGES:
        return {"cache": Choice("paged", block=memory.block, blocks=memory.blocks)}
    return {"cache": Choice("static"), "rows": memory.rows}


def through(engine: Engine, asked: Sequence[Wish], together: int) -> float:
    """Serve so many wishes together until the last of them has ended, then the next; how many are given a token in a step."""
    rule, steps = Drawing(Sampling(temperature=0.0), NEVER), 0
    for first in range(0, len(asked), together):
        requests = [
            engine.submit(wish.prompt, Drawn(rule, wish.prompt, wish.new, first=i), source=wish.source)
            for i, wish in enumerate(asked[first : first + together])
        ]
        while not engine.idle:
            engine.step()
            steps += 1
        for request, wish in zip(requests, asked[first:], strict=False):
            assert len(request.result()[0].tokens) == wish.new, "a text is not as long as it was wished"
    return sum(wish.new for wish in asked) / steps
