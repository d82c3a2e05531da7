"""Training: speed against other libraries, and of each optimizer.

./dev bench train NAME [...]    one of peers, language, shapes, optimizers
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from _shared import apart, interleaved, memory, ratio, run_measurement, table
from _train_steps import (
    ANCHOR,
    OURS,
    add_options,
    our_step,
    peers_of,
    time_contestants,
)
from _workloads import Workload, corpus_workload, text_workload, translator_config
from torch import nn
from torch.optim import Optimizer

from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.kernels.malloc_tuning import CAPACITY_NAMES, tune_malloc
from polyhead.kernels.training import products
from polyhead.models import build, preset_config
from polyhead.train.optim import Muon
from polyhead.train.precision import resolve_precision


def peers(parser: argparse.ArgumentParser) -> None:
    """Training steps of a translator: Polyhead, torch.nn.Transformer and Hugging Face Marian.

    All have the same weights and batches. Each library runs in fp32 and bf16, with torch.compile or without,
    in a process of its own; all take turns.

    ./dev bench train peers                                     tiny sizes, embedded corpus
    ./dev bench train peers --modes eager bf16                  without torch.compile, which takes minutes
    ./dev bench train peers --source train.en --target train.de --vocab-size 10000      a real corpus
    """
    add_corpus_options(parser, batches=12)
    add_options(parser, rounds=7, steps=1)
    options = parser.parse_args()
    print_speeds(chosen_workload(options), options)


def shapes(parser: argparse.ArgumentParser) -> None:
    """Training steps whose batches change shape, beside one shape, with the kernels that oneDNN compiles.

    oneDNN compiles a kernel for each shape. It keeps as many as the command line sets, or --capacity;
    "misses" are those that it compiles in a pass over the batches. On a processor where other products are
    faster, --onednn takes its products all the same, as bf16 with AMX does. Passes take turns; seconds are
    those of the processor.

    ./dev bench train shapes --onednn --threads 1
    """
    add_corpus_options(parser, batches=24)
    parser.add_argument("--capacity", type=int, default=64, help="kernels kept, beside the default")
    parser.add_argument("--onednn", action="store_true", help="multiply in oneDNN wherever it can")
    add_options(parser, rounds=3, steps=None)
    options = parser.parse_args()
    workload = chosen_workload(options)
    middle = sorted(workload.batches, key=lambda batch: batch.labels.numel())[len(workload.batches) // 2]
    one_shape = workload._replace(batches=[middle] * len(workload.batches))
    os.environ["ONEDNN_VERBOSE"] = "profile_create"  # a line for each kernel that it compiles
    rows = [
        ["batches", "kernels kept", "misses of the first pass", "of each later one", "labels/s", "memory, MB"]
    ]
    with ExitStack() as stack:
        calls = {}
        for name, chosen in (("one shape", one_shape), ("changing", workload)):
            for capacity in (None, options.capacity):
                settings = argparse.Namespace(**vars(options) | {"workload": chosen, "capacity": capacity})
                calls[name, capacity] = stack.enter_context(apart({name: build_pass}, settings))[name]
        passes = [{key: call() for key, call in calls.items()} for _ in range(1 + options.rounds)]
    for name, capacity in calls:
        first, *later = (one[name, capacity] for one in passes)
        n_labels = len(workload.batches) * (one_shape if name == "one shape" else workload).labels
        speed = n_labels / statistics.median(one.seconds for one in later)
        misses = f"{statistics.mean(one.misses for one in later):,.0f}"
        rows.append(
            [
                name,
                str(first.kept),
                f"{first.misses:,}",
                misses,
                f"{speed:,.0f}",
                f"{later[-1].megabytes:,.0f}",
            ]
        )
    print(table(rows))


class Pass(NamedTuple):
    """A pass over the batches of a workload."""

    seconds: float  # of the processor
    misses: int
    kept: str  # the capacity of oneDNN's cache
    megabytes: float  # of the process, the most so far


def build_pass(options: argparse.Namespace) -> Callable[[], Pass]:
    """A function that trains once on each batch, in a process of its own."""
    if options.capacity is not None:
        os.environ |= dict.fromkeys(CAPACITY_NAMES, str(options.capacity))
    output = tempfile.TemporaryFile()  # noqa: SIM115
    os.dup2(output.fileno(), 1)
    tune_malloc()
    torch.set_num_threads(options.threads)
    if options.onednn:
        products._read_choice = lambda path, candidates: next(
            (name for name in candidates if name == "onednn"), next(iter(candidates))
        )
    step = our_step(build(options.workload.config, seed=1).train(), options.workload, OURS[ANCHOR])
    flush = ctypes.CDLL(None).fflush

    def run() -> Pass:
        flush(None)
        output.truncate(0)
        start = time.process_time()
        for batch in options.workload.batches:
            step(batch)
        seconds = time.process_time() - start
        flush(None)
        output.seek(0)
        misses = output.read().count(b"create:cache_miss")
        return Pass(seconds, misses, os.environ[CAPACITY_NAMES[0]], memory("VmHWM") / 1e6)

    return run


def add_corpus_options(parser: argparse.ArgumentParser, batches: int) -> None:
    """Options of ``chosen_workload``."""
    parser.add_argument("--preset", default="tiny", help="sizes (default: tiny)")
    parser.add_argument("--source", type=Path, help="source side of a parallel corpus (default: embedded)")
    parser.add_argument("--target", type=Path)
    parser.add_argument(
        "--vocab-size", type=int, default=10000, help="of the model; the tokenizer may find fewer"
    )
    parser.add_argument("--max-tokens", type=int, default=3200)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=batches)


def chosen_workload(options: argparse.Namespace) -> Workload:
    """The model and batches that the options of ``add_corpus_options`` choose."""
    files = (options.source, options.target) if options.source else None
    config = translator_config(options.preset, options.vocab_size, dropout=options.dropout)
    return corpus_workload(files, config, options.max_tokens, options.batches)


def language(parser: argparse.ArgumentParser) -> None:
    """Training steps of a small language model: Polyhead, torch.nn, Hugging Face GPT-2, nanoGPT.

    The setting is nanoGPT's for a CPU: 4 layers, 4 heads, d_model 128, rows of 64 characters, 12 rows a step,
    no biases, no dropout, AdamW with (0.9, 0.99) and weight decay 0.1 on matrices, gradients clipped at 1.
    All begin with the same weights and have the same rows.

    ./dev bench train language --text tinyshakespeare/input.txt
    ./dev bench train language --text tinyshakespeare/input.txt --nanogpt path/to/nanoGPT
    """
    parser.add_argument("--text", type=Path, required=True)
    add_options(parser, rounds=9, steps=20)
    options = parser.parse_args()
    print_speeds(text_workload(options.text.read_text(), rows=12, length=64), options)


def print_speeds(workload: Workload, options: argparse.Namespace) -> None:
    """Measure a workload, and print its contestants as a table."""
    speeds = time_contestants(workload, options, peers_of(workload, options))
    if not speeds:
        return
    print(
        f"\n{workload.labels:,.0f} labels a step, {options.threads} threads, a process each, "
        f"medians of {options.rounds} rounds of {options.steps} steps\n"
    )
    rows = [["system", "labels/s", f"{ANCHOR} is faster by"]]
    for name, speed in speeds.items():
        rows.append([name, f"{speed.tokens_per_s:,.0f}", f"{speed.anchor_ratio:.2f}"])
    print(table(rows))


def optimizers(parser: argparse.ArgumentParser) -> None:
    """What an update of each optimizer costs, beside Muon of torch, paired in one run.

    ./dev bench train optimizers
    """
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"], help="sizes (default: tiny base)")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    tune_malloc()
    torch.set_num_threads(options.threads)
    fast = "fast" if resolve_precision("auto", torch.device("cpu")) == "bf16" else "slow"
    print(
        f"{options.threads} threads, medians of {options.rounds} interleaved rounds, a processor {fast} in "
        "bf16\n"
    )
    rows = [["model", "optimizer", "ms an update", "times Polyhead's Muon"]]
    for name in options.presets:
        updates = {
            kind: updater(name, options.vocab_size, kind) for kind in (*OPTIMIZER.names(), "torch's Muon")
        }
        seconds = interleaved(updates, options.rounds)
        for kind, times in seconds.items():
            rows.append(
                [name, kind, f"{1e3 * statistics.median(times):,.1f}", f"{ratio(times, seconds['muon']):.2f}"]
            )
    print(table(rows))


def updater(size: str, vocab_size: int, kind: str) -> Callable[[], None]:
    """A function that updates a model of this size by random gradients, which stay the same."""
    model = build(preset_config(size, vocab_size), seed=1)
    optimizers = OPTIMIZER.build(Choice("muon" if kind == "torch's Muon" else kind), model, 1e-3)
    if kind == "torch's Muon":
        optimizers = [of_torch(one) if isinstance(one, Muon) else one for one in optimizers]
    torch.manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)

    def update() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return update


def of_torch(muon: Muon) -> Optimizer:
    """The same of torch."""
    inside: list[nn.Parameter] = muon.param_groups[0]["params"]
    return torch.optim.Muon(inside, lr=1e-3, adjust_lr_fn="match_rms_adamw")


if __name__ == "__main__":
    run_measurement(__doc__ or "", peers, language, shapes, optimizers)
