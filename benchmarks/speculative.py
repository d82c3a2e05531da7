"""What guesses are worth: how many come true, and how long a language model takes with them and without.

./dev bench speculative texts --run RUN --draft SMALL_RUN --text wikitext-2/test.txt.gz
./dev bench speculative steps
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _shared import interleaved, ratio, table
from torch import Tensor

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import SPECULATIVE
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.generation.speculative.verify import (
    DraftContext,
    Drafter,
    DraftTokens,
    Proposer,
    speculative_generate,
)
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import pack_model
from polyhead.models import build
from polyhead.nn.cache import Cache
from polyhead.run.run import Run

NEVER = -1  # an end that no model says, so that all contestants say equally much
WAYS = {
    "look-up, 4": Choice("lookup", tokens=4),
    "look-up, 8": Choice("lookup", tokens=8),
    "look-up, 4, 2 alike": Choice("lookup", tokens=4, least=2),
    "draft, 2": Choice("draft", tokens=2),
    "draft, 4": Choice("draft", tokens=4),
}


def main() -> None:
    """Print the table of one question."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=["texts", "steps"])
    parser.add_argument("--run", type=Path, help="a trained language model")
    parser.add_argument("--draft", type=Path, help="a smaller one with the same tokenizer")
    parser.add_argument("--text", type=Path, help="prompts are cut out of it")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_malloc()
    {"texts": texts, "steps": steps}[options.question](options)


def clock(options: argparse.Namespace) -> Callable[[], float]:
    """Processor time, which others do not disturb, where one thread does all."""
    return time.process_time if options.threads == 1 else time.perf_counter


def said_of(options: argparse.Namespace) -> str:
    """How it was measured."""
    return "one thread, processor time" if options.threads == 1 else f"{options.threads} threads"


class Counted:
    """A proposer whose guesses are counted."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.guessed = self.rows = 0  # tokens, and rows of steps

    def start(self, prompts: Sequence[Sequence[int]], conditions: DraftContext) -> Counted:
        self.inner: Drafter = self.proposer.start(prompts, conditions)
        return self

    def propose(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], most: Sequence[int]
    ) -> list[DraftTokens]:
        found = self.inner.propose(texts, streams, most)
        self.guessed, self.rows = (
            self.guessed + sum(len(guess.tokens) for guess in found),
            self.rows + len(found),
        )
        return found

    def reorder(self, rows: Sequence[int]) -> None:
        self.inner.reorder(rows)


def texts(options: argparse.Namespace) -> None:
    """Continuations of passages, and of passages that have just been said once: each round another, ways in
    turns.
    """
    run = ph.load(options.run, fast=True)
    opened = gzip.open if options.text.suffix == ".gz" else open
    with opened(options.text, "rt", encoding="utf-8") as file:
        (ids,) = run.tokenizer.encode([file.read(2_000_000)])
    ways = {name: choice for name, choice in WAYS.items() if choice.name != "draft" or options.draft}
    proposers = {name: made(choice, run, options.draft) for name, choice in ways.items()}
    print(f"{options.new_tokens} new tokens, {said_of(options)}, medians of {options.rounds} rounds in "
          "turns; true: share of "
          "guesses that stay; a step: tokens said in one, by each text\n")  # fmt: skip
    lines = [["prompt", "temperature", "texts", "guesses", "true", "a step", "tokens/s", "times as fast"]]
    for again in (False, True):
        for temperature in options.temperatures:
            for n in options.batches[:1] if again else options.batches:
                prompts = [
                    [cut(ids, i * n + j, options.prompt, again) for j in range(n)]
                    for i in range(options.rounds + 1)
                ]
                lines += compared(run, proposers, prompts, temperature, options)
                for line in lines[-1 - len(proposers) :]:
                    line[:3] = ["said once already" if again else "text", f"{temperature:g}", str(n)]
                    print("\t".join(line), flush=True)
    print("\n" + table(lines))


def cut(ids: list[int], number: int, size: int, again: bool) -> list[int]:
    """A passage; or a passage whose first quarter follows once more."""
    at = (number * 997 + 13) * size % (len(ids) - size)
    passage = ids[at : at + size]
    return passage + passage[: size // 4] if again else passage


def made(choice: Choice, run: Run, small: Path) -> Proposer:
    """The proposer."""
    if choice.name == "draft":
        choice = Choice("draft", **choice.options, run=str(small))
    proposer: Proposer = SPECULATIVE.build(choice, run)
    return proposer


def compared(
    run: Run,
    proposers: dict[str, Proposer],
    prompts: list[list[list[int]]],
    temperature: float,
    options: argparse.Namespace,
) -> list[list[str]]:
    """A line for plain decoding and one for each proposer; the first prompts warm up."""
    rest: dict[str, Any] = {"sampling": Sampling(temperature), "eos_id": NEVER,
        "max_new_tokens": options.new_tokens,
                            "max_len": run.config.max_len}  # fmt: skip
    turn = dict.fromkeys(["plain", *proposers], 0)
    counted = {name: Counted(proposer) for name, proposer in proposers.items()}

    def say(name: str) -> None:
        given, turn[name] = prompts[turn[name]], turn[name] + 1
        if name == "plain":
            said = [*generate(run.model, given, seed=turn[name], **rest)]  # type: ignore[arg-type]
        else:
            said = [*speculative_generate(run.model, given, counted[name], seed=turn[name], **rest)]  # type: ignore[arg-type]
        assert len(said) == len(given) * options.new_tokens

    seconds = interleaved(
        {name: lambda name=name: say(name) for name in turn}, options.rounds, clock=clock(options)
    )  # type: ignore[misc]
    n = len(prompts[0])
    lines = []
    for name, times in seconds.items():
        speed = f"{n * options.new_tokens / statistics.median(times):,.0f}"
        if name == "plain":
            lines.append(["", "", "", name, "", "1", speed, "1"])
            continue
        said = n * options.new_tokens * (options.rounds + 1)
        guessed, rows = counted[name].guessed, counted[name].rows
        true = f"{100 * (said - rows) / max(1, guessed):.0f} %"
        lines.append(
            ["", "", "", name, true, f"{said / rows:.2f}", speed, f"{ratio(seconds['plain'], times):.2f}"]
        )
    return lines


def steps(options: argparse.Namespace) -> None:
    """What a step of several tokens costs against one of one token; the weights do not
    matter to the clock.
    """
    config = ModelConfig(kind="decoder", vocab_size=8000, d_model=options.width, n_heads=options.width // 64,
        d_ff=4 * options.width,
                         n_layers=options.layers, n_decoder_layers=options.layers, position="rope",
                         max_len=4096)  # fmt: skip
    model = pack_model(build(config, seed=0).eval())
    print(
        f"{options.layers} layers of {options.width}, fp32, {said_of(options)}, 128 tokens before, "
        f"{options.rounds} rounds\n"
    )
    widths = [1, 2, 3, 5, 7, 8, 9, 17]
    lines = [["rows", "1 token ms", *(f"{k} tokens" for k in widths[1:])]]
    for n in options.batches:
        with torch.inference_mode():
            cache = make_cache(None, model.cache_shape, n, 160)  # type: ignore[arg-type]

            def read(pos: Tensor, cache: Cache = cache) -> None:
                cache.prepare_step(range(len(pos)), pos)
                model.decode(torch.ones_like(pos), pos, cache, None)  # type: ignore[operator]

            read(torch.arange(128).expand(n, -1))
            at = {k: torch.arange(128, 128 + k).expand(n, -1) for k in widths}
            seconds = interleaved(
                {str(k): lambda pos=pos: read(pos) for k, pos in at.items()},
                options.rounds,
                clock=clock(options),
            )  # type: ignore[misc]
        more = [f"{ratio(seconds[str(k)], seconds['1']):.2f}" for k in widths[1:]]
        lines.append([str(n), f"{1000 * statistics.median(seconds['1']):.1f}", *more])
    print(table(lines))


if __name__ == "__main__":
    main()
