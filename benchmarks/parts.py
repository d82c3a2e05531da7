"""What a part costs: one training step with every registered part in the place of that of the base design.

./dev bench parts                      all kinds
./dev bench parts position norm        some
./dev bench parts position --with position=rope,layout=interleaved,fraction=0.5

The base design is the preset as it stands, at the learning task of a translator: random tokens, sources of
  all lengths
from half the longest on. Designs take turns step by step in one process, on the same batches. With one thread
a step is what it keeps the processor busy, so that other programs on the machine count less; with more it is
the time on the clock. The ratio is the median of those of the rounds, the spread their quartiles.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from _shared import table
from _train_steps import make_stepper
from _workloads import SMOOTHING
from torch import nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POSITION
from polyhead.data.batching.collate import PairBatch
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build, preset_config
from polyhead.nn.loss import cross_entropy
from polyhead.nn.validate_model import check_model
from polyhead.train.precision import ResolvedPrecision, autocast

KINDS = {
    "attention": ATTENTION,
    "position": POSITION,
    "norm": NORM,
    "feed_forward": FEED_FORWARD,
    "block": BLOCK,
}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--with", dest="more", action="append", default=[], metavar="KIND=NAME,OPTION=VALUE,..."
    )
    parser.add_argument("--preset", default="tiny", help="sizes and base design (default: tiny)")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--length", type=int, default=32, help="tokens of the longest row")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    tune_malloc()
    torch.set_num_threads(options.threads)
    batches = some_batches(options)
    print(f"{options.preset}, {options.precision}, {options.rows} rows of up to {options.length} tokens, "
          f"{options.threads} threads, {options.rounds} interleaved rounds")  # fmt: skip
    for kind in options.kinds or KINDS:
        print(f"\n{kind}\n" + "\n".join(measured(kind, options, batches)), flush=True)


def some_batches(options: argparse.Namespace) -> list[PairBatch]:
    """A few batches of random tokens; targets are whole, for the padding behind them costs the same."""
    torch.manual_seed(0)
    B, T = options.rows, options.length
    batches = []
    for _ in range(4):
        source, target, labels = torch.randint(5, options.vocab_size, (3, B, T)).unbind()
        lengths = torch.randint(T // 2, T + 1, (B, 1))
        at = torch.arange(T).expand(B, -1)
        batches.append(PairBatch(source, at.masked_fill(at >= lengths, -1), target, labels, B * T))
    return batches


def measured(kind: str, options: argparse.Namespace, batches: list[PairBatch]) -> list[str]:
    """The table of one kind, and what was refused."""
    base = preset_config(options.preset, options.vocab_size)
    own = getattr(base, kind)
    designs, refused = {f"{own.name} (base)": base}, []
    for name, choice in choices(kind, options.more):
        if name == own.name:
            continue
        try:
            designs[name] = check_model(ModelConfig(**(base.model_dump() | {kind: choice})))
        except ValueError as error:
            refused.append(f"{name}: {error}")
    steps = {name: step(config, batches, options.precision) for name, config in designs.items()}
    seconds = taken(steps, options.rounds, time.perf_counter if options.threads > 1 else time.process_time)
    gc.collect()
    first = next(iter(seconds.values()))
    rows = [[kind, "ms", "times the base", "spread"]]
    for name, own_times in seconds.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(own_times, first, strict=True)], n=4)
        rows.append(
            [name, f"{1e3 * statistics.median(own_times):.1f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]
        )
    return [table(rows), *refused]


def choices(kind: str, more: list[str]) -> list[tuple[str, Choice]]:
    """Every part of a kind as it is by default, then those asked for: (name, choice)."""
    found = [(name, Choice(name)) for name in KINDS[kind].names()]
    for text in more:
        place, _, part = text.partition("=")
        name, *pairs = part.split(",")
        if place == kind:
            found.append((part, Choice(name, **dict(pair.split("=", 1) for pair in pairs))))
    return found


def step(config: ModelConfig, batches: list[PairBatch], precision: ResolvedPrecision) -> Callable[[], None]:
    """A function that does the next whole step: forward, loss, backward, clipping, fused AdamW."""
    model = build(config, seed=1)

    def loss(batch: PairBatch) -> torch.Tensor:
        target_pos = batch.target_pos if model.needs_padding_mask else None
        features = model.features(batch.source, batch.target, batch.source_pos, target_pos)
        found = cross_entropy(features, model.head, batch.labels, SMOOTHING)
        return found.total / found.count

    module: nn.Module = model
    cpu = torch.device("cpu")
    return make_stepper(module, loss, batches, lambda: autocast(precision, cpu))


def taken(
    steps: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of a step, name -> one figure a round; the order turns, so that nobody always follows the same
    one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds + 2):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            start = clock()
            steps[name]()
            if turn >= 2:  # the first two warm up
                seconds[name].append(clock() - start)
    return seconds


if __name__ == "__main__":
    main()
