"""Serve the same texts in the same memory: reserved rows in static or continuous batches, or paged blocks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from polyhead import Choice
from polyhead.cache.paged import choose_block_size
from polyhead.core.errors import UserError
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead_lab.models import ModelUnderTest
from polyhead_lab.statistics import pick_clock, time_call

_NO_EOS = -1  # token id that no model generates: outputs have the length of the texts
SCHEDULE_BATCHES, SCHEDULE_RESERVED, SCHEDULE_PAGES = (
    "reserved, static batching",
    "reserved, continuous batching",
    "pages, continuous batching",
)
_SCHEDULES = (SCHEDULE_BATCHES, SCHEDULE_RESERVED, SCHEDULE_PAGES)


class ServeRequest(NamedTuple):
    """One request: prompt tokens, number of new tokens, and source tokens for a translator."""

    prompt: list[int]
    new_tokens: int
    source: list[int] | None = None

    @property
    def length(self) -> int:
        """Tokens that the cache holds at the end."""
        return len(self.prompt) + self.new_tokens


class MemoryBudget(NamedTuple):
    """Memory for ``rows`` rows of the longest text, and the block size of a paged cache of equal memory."""

    rows: int
    max_len: int
    block_size: int

    @property
    def n_blocks(self) -> int:
        return self.rows * self.max_len // self.block_size


class ServingResult(NamedTuple):
    """Duration of each schedule, and its mean number of active texts."""

    seconds: dict[str, list[float]]  # by schedule, one per round
    rows: dict[str, float]  # by schedule, mean number of texts that get a token in a step
    tokens: int  # new tokens per round
    memory: MemoryBudget


def make_requests(subject: ModelUnderTest, n: int, max_len: int) -> list[ServeRequest]:
    """Requests from the first ``n`` texts, of at most ``max_len`` tokens each.

    The first half of a line is the prompt and its second half is generated, or a target from its source.
    """
    run, tokenizer = subject.run, subject.run.tokenizer
    if subject.is_translator:
        sides, targets = (
            tokenizer.seq2seq_template,
            subject.references[:n] or run.translate(subject.texts[:n], beam_size=1, truncate=True),
        )
        pairs = zip(
            tokenizer.encode(subject.texts[:n]), tokenizer.target_tokenizer.encode(targets), strict=True
        )
        return [
            ServeRequest(
                [sides.decoder_start_id],
                min(len(b) + 1, max_len - 1),
                sides.encoder_input(a[: max_len - sides.max_special]),
            )
            for a, b in pairs
        ]
    template, requests = run.prompt_template, []
    for ids in tokenizer.encode(subject.split_lines()[: 4 * n]):
        prompt = template.build_prompt(ids[: max_len // 2][: len(ids) // 2])
        if len(prompt) > 0 and len(ids) > 1:
            requests.append(ServeRequest(prompt, min(len(ids) - len(ids) // 2, max_len - len(prompt))))
    if not requests:
        raise UserError("the text has no line of two tokens or more")
    return requests[:n]


def make_memory_budget(workload: Sequence[ServeRequest], rows: int) -> MemoryBudget:
    """Memory for ``rows`` rows of the longest request."""
    return MemoryBudget(
        rows,
        max(request.length for request in workload),
        choose_block_size(statistics.fmean(request.length for request in workload)),
    )


def time_serving(model: Any, workload: Sequence[ServeRequest], rows: int, rounds: int) -> ServingResult:
    """Serve all requests with each schedule, interleaved."""
    memory, clock = make_memory_budget(workload, rows), pick_clock()
    active_rows: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in _SCHEDULES}

    def serve_once(schedule: str) -> None:
        engine = Engine(model, max_len=memory.max_len, **make_engine_settings(schedule, memory))
        active_rows[schedule] = serve_in_batches(
            engine, workload, memory.rows if schedule == SCHEDULE_BATCHES else len(workload)
        )

    for turn in range(rounds):
        for name in _SCHEDULES[turn % 3 :] + _SCHEDULES[: turn % 3]:
            seconds[name].append(time_call(partial(serve_once, name), clock))
    return ServingResult(seconds, active_rows, sum(request.new_tokens for request in workload), memory)


def make_engine_settings(schedule: str, memory: MemoryBudget) -> dict[str, Any]:
    """Engine settings of a schedule: a number of rows, or a number of blocks."""
    if schedule == SCHEDULE_PAGES:
        return {"cache": Choice("paged", block_size=memory.block_size, max_blocks=memory.n_blocks)}
    return {"cache": Choice("static"), "max_num_seqs": memory.rows}


def serve_in_batches(engine: Engine, workload: Sequence[ServeRequest], batch_size: int) -> float:
    """Serve requests in batches, each until its last request ends; return the mean number of texts per step.

    Only texts that get a token in a step are counted.
    """
    rule, steps = SamplingStrategy(Sampling(temperature=0.0), _NO_EOS), 0
    for first in range(0, len(workload), batch_size):
        requests = [
            engine.submit(
                item.prompt,
                SampledSequences(rule, item.prompt, item.new_tokens, row_offset=i),
                source=item.source,
            )
            for i, item in enumerate(workload[first : first + batch_size])
        ]
        while not engine.idle:
            engine.step()
            steps += 1
        for request, item in zip(requests, workload[first:], strict=False):
            assert len(request.result()[0].tokens) == item.new_tokens, (
                "a text does not have the requested length"
            )
    return sum(item.new_tokens for item in workload) / steps
