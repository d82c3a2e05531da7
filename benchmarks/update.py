"""What a training update costs: with several processes, with adapters, and by the library of its products.

./dev bench update NAME [...]    one of ranks, adapters, products, adamw
"""

from __future__ import annotations

import os
import sys

if "products" in sys.argv[1:2] and "--all-of-mkl" not in sys.argv:
    os.environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"  # is read when torch is

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _shared import apart, interleaved, memory, ratio, run_measurement, table
from _train_steps import make_stepper
from _workloads import SMOOTHING
from torch import Tensor, nn

from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts
from polyhead.data.stores.pair_store import PairStore
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.training.adamw import AdamW
from polyhead.kernels.training.mode import training_kernels
from polyhead.models import CausalLM, Seq2Seq, build, preset_config
from polyhead.nn.loss import cross_entropy
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.torch_process_group import PeerLostError, init_process_group
from polyhead.train.loop import train_step
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.translation import TranslationTask
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import prepare_trainable


def ranks(parser: argparse.ArgumentParser) -> None:
    """An update of the weights in one process and in several, paired in one run.

    ./dev bench update ranks               tiny sizes, embedded corpus: 1 process, 2 threads, 2 processes
    ./dev bench update ranks --processes 4 --preset base --precision bf16

    Every contestant makes the same update of the same batches: counts summed, gradients summed, clipping,
      fused AdamW.
    """
    parser.add_argument("--preset", default="tiny", help="sizes (default: tiny)")
    parser.add_argument("--vocab-size", type=int, default=10000)
    parser.add_argument("--max-tokens", type=int, default=3200, help="of a batch, which the processes share")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sentences", type=int, default=6000, help="of the embedded corpus")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        follow(options)
        return
    n = options.processes
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        tokens = prepare(options)
        contestants = {
            "1 process of 1 thread": partial(alone, threads=1),
            f"1 process of {n} threads": partial(alone, threads=n),
            f"{n} processes of 1 thread": lead,
        }
        with apart(contestants, options) as calls:
            for _ in range(2):
                for call in calls.values():
                    call()
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            for _ in range(options.rounds):
                for name, call in calls.items():
                    seconds[name].append(call())
    first = [wall for wall, _ in seconds["1 process of 1 thread"]]
    rows = [
        [
            "contestant",
            "ms an update",
            "of the processor, a process",
            "target tokens/s",
            "times 1 process of 1 thread",
        ]
    ]
    for name, times in seconds.items():
        wall, used = (list(column) for column in zip(*times, strict=True))
        middle = statistics.median(wall)
        cells = [f"{1e3 * middle:.0f}", f"{1e3 * statistics.median(used):.0f}", f"{tokens / middle:,.0f}"]
        rows.append([name, *cells, f"{ratio(first, wall):.2f}"])
    print(f"{options.preset}, {options.precision}, vocabulary {options.vocab_size}, {tokens:,.0f} target "
          "tokens an update, "
          f"medians of {options.rounds} interleaved rounds of {TURN} updates")  # fmt: skip
    print(table(rows))


TURN = 3  # updates at a time


def prepare(options: argparse.Namespace) -> float:
    """Write the corpus, its tokens and a tokenizer into the folder; returns the mean of the target tokens of
    a batch.
    """
    corpus = open_corpus(write_corpus(options.folder, n=options.sentences)["train"])
    train_tokenizer(read_corpus_texts(corpus), Choice("bpe"), options.vocab_size).save(options.folder)
    task, plan = opened(options)
    return statistics.mean(task.count_labels(task.collate(rows)) for rows in plan)


def opened(options: argparse.Namespace) -> tuple[TranslationTask, list[Any]]:
    """The task, and a dozen of its fuller batches."""
    tokenizer = Tokenizer.load(options.folder)
    files = sorted(path for path in options.folder.iterdir() if path.name.startswith("train."))
    store = PairStore.open_or_build(open_corpus(files), tokenizer, options.folder, max_len=128)
    task = TranslationTask(store, store, tokenizer, settings(options))
    full = 0.8 * options.max_tokens
    return task, [
        rows for rows in task.epoch_batches(0) if len(rows) * max(store.target_lengths[rows]) > full
    ][:12]


def settings(options: argparse.Namespace) -> TrainConfig:
    """How all of them learn."""
    return TrainConfig(
        steps=10**6, max_tokens=options.max_tokens, precision=options.precision, lr=1e-4, label_smoothing=0.1
    )


def stepper(options: argparse.Namespace, ranks: ProcessGroup) -> Callable[[], tuple[float, float]]:
    """Does a turn of updates; returns the seconds of one, and those of the processor for this process."""
    tune_malloc()
    task, plan = opened(options)
    config = settings(options)
    model = build(preset_config(options.preset, options.vocab_size, dropout=0.1), seed=1)
    training = TrainState(model.train(), config, model.config.d_model, 10**6)
    strategy = parallelize(training, task, config, ranks)
    parts = [strategy.collate(rows) for rows in plan]

    def turn() -> tuple[float, float]:
        ranks.all_reduce(0)
        start = time.perf_counter(), time.process_time()
        for _ in range(TURN):
            training.progress.step += 1
            train_step(strategy, parts[training.progress.step % len(parts)]).read()
        return (time.perf_counter() - start[0]) / TURN, (time.process_time() - start[1]) / TURN

    return turn


def alone(options: argparse.Namespace, threads: int) -> Callable[[], tuple[float, float]]:
    """One process."""
    torch.set_num_threads(threads)
    return stepper(options, SINGLE_PROCESS)


def lead(options: argparse.Namespace) -> Callable[[], tuple[float, float]]:
    """The first of several processes; the others follow its steps until it is gone."""
    n = options.processes
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {
        "WORLD_SIZE": n,
        "LOCAL_WORLD_SIZE": n,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    common = {name: str(value) for name, value in told.items()}
    arguments = [item for name in ("preset", "vocab_size", "max_tokens", "precision", "folder")
                 for item in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]  # fmt: skip
    for rank in range(1, n):
        environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        subprocess.Popen([sys.executable, __file__, "ranks", *arguments, "--follow"], env=environment)
    os.environ.update(common | {"RANK": "0", "LOCAL_RANK": "0"})
    torch.set_num_threads(1)
    context = init_process_group(600.0)
    turn = stepper(options, context.__enter__())
    return lambda within=context: turn()  # type: ignore[misc]  # which ends when it is forgotten


def follow(options: argparse.Namespace) -> None:
    """Make every step that the first process makes."""
    torch.set_num_threads(1)
    try:
        with init_process_group(600.0) as ranks:
            turn = stepper(options, ranks)
            while True:
                turn()
    except (PeerLostError, RuntimeError):
        os._exit(0)


class Seen(NamedTuple):
    """Of some updates."""

    every: int  # parameters
    learned: int
    seconds: float
    nbytes: int
    planned: int


def adapters(parser: argparse.ArgumentParser) -> None:
    """What an update costs when all weights learn, and when adapters learn beside them: time, memory, and the
    plan's bytes.

    ./dev bench update adapters [--preset gpt2] [--vocabulary 50257] [--rows 4] [--length 128] [--rank 8]
    [--updates 3]

    Each row is measured in a process of its own: processor seconds of an update, the middle one, and the
      greatest resident
    memory beyond that before the model. Weights are drawn: an update costs the same whatever they are.
    """
    for name, default in (("vocabulary", 50257), ("rows", 4), ("length", 128), ("rank", 8), ("updates", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--preset", default="gpt2")
    options = parser.parse_args()
    learns: dict[str, dict[str, Any]] = {
        "all": {},
        "adapters, q_proj and v_proj": {"lora": {"r": options.rank}},
        "adapters, every map": {"lora": {"r": options.rank, "target_modules": ["attn", "ffn"]}},
    }
    rows = [["what learns", "parameters that learn", "s an update", "MB at most", "MB planned"]]
    for name, changes in learns.items():
        with get_context("spawn").Pool(1) as pool:
            seen = pool.apply(measured, (vars(options), changes))
        share = f"{seen.learned:,} ({seen.learned / seen.every:.2%})"
        rows.append(
            [name, share, f"{seen.seconds:.2f}", f"{seen.nbytes / 1e6:,.0f}", f"{seen.planned / 1e6:,.0f}"]
        )
    print(table(rows))


def measured(options: dict[str, Any], changes: dict[str, Any]) -> Seen:
    """Some updates over one batch, and what a plan says of them."""
    torch.set_num_threads(1)
    tune_malloc()
    config = preset_config(options["preset"], options["vocabulary"], dropout=0.0)
    source = options["length"] if config.kind == "encoder-decoder" else 0
    load = BatchShape(options["rows"], options["length"], source)
    train = TrainConfig(steps=10, precision="fp32", **changes)
    planned = estimate_training_memory(
        config, load, train.optimizer, prepare=lambda model: prepare_trainable(model, train)
    ).total
    task, before = RandomTokenTask(config, load), memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    training = TrainState(build(config, 1).train(), train, config.d_model, 10)
    strategy = parallelize(training, task, train)
    learned, every = (
        sum(p.numel() for p in training.model.parameters() if p.requires_grad or any_)
        for any_ in (False, True)
    )
    batch, seconds = task.collate(None), []
    for step in range(1, options["updates"] + 2):
        start = time.process_time()
        training.progress.step = step
        train_step(strategy, [batch]).read()
        seconds.append(time.process_time() - start)
    return Seen(every, learned, statistics.median(seconds[1:]), memory("VmHWM") - before, planned or 0)


INSIDE = {
    "fp32, MKL": nullcontext,
    "fp32, oneDNN": training_kernels,
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
}


def products(parser: argparse.ArgumentParser) -> None:
    """Training steps in fp32: products by oneDNN against those of torch, which asks MKL, and against bf16,
    paired in one run.

    MKL is told to take AVX2, as it does by itself on processors of AMD, so that any machine with AVX-512
    shows the same; with --all-of-mkl it may take what it likes.

    ./dev bench update products
    """
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--models", nargs="+", default=["tiny", "base", "gpt2"], help="presets")
    parser.add_argument("--all-of-mkl", action="store_true", help="do not hold MKL back")
    options = parser.parse_args()
    tune_malloc()  # as the command line does
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, medians of {options.rounds} interleaved rounds\n")
    rows = [["model", "products", "ms per step", "times as fast"]]
    for name in options.models:
        model, batches = translator(name) if name != "gpt2" else language_model(name)
        steps = {how: make_stepper(model, loss_of(model), batches, inside) for how, inside in INSIDE.items()}
        seconds = interleaved(steps, options.rounds, warmup=2)
        for how, times in seconds.items():
            faster = ratio(seconds["fp32, MKL"], times)
            rows.append([name, how, f"{1e3 * statistics.median(times):,.0f}", f"{faster:.2f}"])
    print(table(rows))


def adamw(parser: argparse.ArgumentParser) -> None:
    """Clipping and AdamW of the weights of language models: torch's fused calls, and ours in two passes.

    ./dev bench update adamw
    """
    sizes = {"nanogpt": (4, 128, 65), "base": (6, 512, 32000), "gpt2": (12, 768, 50304)}
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--models", nargs="+", choices=sizes, default=list(sizes))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [["model", "torch, ms", "ours, ms", "times as fast"]]
    for name in options.models:
        n_layers, d_model, vocab_size = sizes[name]
        changes = {"n_layers": n_layers, "d_model": d_model, "n_heads": 4}
        config = preset_config("gpt2", vocab_size, dropout=0.0, **changes)
        calls = {kind.__module__: make_update(build(config, 1), kind) for kind in (torch.optim.AdamW, AdamW)}
        theirs, ours = interleaved(calls, options.rounds, warmup=2).values()
        medians = (f"{1e3 * statistics.median(times):,.2f}" for times in (theirs, ours))
        rows.append([name, *medians, f"{ratio(theirs, ours):.2f}"])
    print(table(rows))


def make_update(model: nn.Module, kind: type[torch.optim.AdamW]) -> Callable[[], None]:
    """A call that clips random gradients and updates the weights."""
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = kind(parameters, lr=1e-3, fused=True)

    def update() -> None:
        if isinstance(optimizer, AdamW):
            optimizer.clip(1.0)
        else:
            float(nn.utils.clip_grad_norm_(parameters, 1.0))
        optimizer.step()

    return update


def translator(name: str) -> tuple[nn.Module, list[tuple[Tensor | None, ...]]]:
    """With batches of real text, whose lengths differ."""
    max_tokens = 3200 if name == "tiny" else 1600
    with tempfile.TemporaryDirectory() as folder:
        options = argparse.Namespace(
            folder=Path(folder), sentences=6000, vocab_size=10000, max_tokens=max_tokens, precision="fp32"
        )
        prepare(options)
        task, plan = opened(options)
        batches = [task.collate(rows) for rows in plan]
    model = build(preset_config(name, 10000, dropout=0.1), seed=1)
    return model, [(batch.labels, batch.source, batch.target, batch.source_pos) for batch in batches]


def language_model(name: str) -> tuple[nn.Module, list[tuple[Tensor | None, ...]]]:
    """With one batch of four rows of 128 tokens."""
    cells = torch.randint(0, 50257, (4, 129), generator=torch.Generator().manual_seed(1))
    return build(preset_config(name, 50257, dropout=0.1), seed=1), [(cells[:, 1:], cells[:, :-1])]


def loss_of(model: nn.Module):  # type: ignore[no-untyped-def]
    """The mean loss of a batch: labels, and what is read."""
    assert isinstance(model, Seq2Seq | CausalLM)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        found = cross_entropy(model.features(*batch[1:]), model.head, batch[0], SMOOTHING)
        return found.total / found.count

    return loss


if __name__ == "__main__":
    run_measurement(__doc__ or "", ranks, adapters, products, adamw)
