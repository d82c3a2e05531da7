"""An update of the weights in one process and in several, of Polyhead and of torch's DistributedDataParallel, paired in one run.

python benchmarks/ranks.py                           tiny sizes, embedded corpus: 1 process, 2 processes, 2 threads, DDP
python benchmarks/ranks.py --processes 4 --preset base --precision bf16

Every contestant makes the same update of the same batches: counts summed, gradients summed, clipping, fused AdamW.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import apart, ratio, table
from torch import Tensor, nn

from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts
from polyhead.data.stores.pair_store import PairStore
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build, preset_config
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.torch_process_group import PeerLost, init_process_group
from polyhead.train.loop import train_step
from polyhead.train.optim import set_rates
from polyhead.train.precision import autocast, resolve_precision
from polyhead.train.tasks.translation import TranslationTask
from polyhead.train.train_state import TrainState


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", help="sizes (default: tiny)")
    parser.add_argument("--vocab-size", type=int, default=10000)
    parser.add_argument("--max-tokens", type=int, default=3200, help="of a batch, which the processes share")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sentences", type=int, default=6000, help="of the embedded corpus")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--other", choices=["ours", "ddp"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.spare_storage:
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
            f"{n} processes of 1 thread": partial(lead, kind="ours"),
            f"{n} processes of 1 thread, DDP": partial(lead, kind="ddp"),
        }
        with apart(contestants, options) as calls:
            for _ in range(2):
                for call in calls.values():
                    call()
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            for _ in range(options.n_rounds):
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
    print(f"{options.preset}, {options.precision}, vocabulary {options.vocab_size}, {tokens:,.0f} target tokens an update, "
          f"medians of {options.n_rounds} interleaved rounds of {TURN} updates")  # fmt: skip
    print(table(rows))


TURN = 3  # updates at a time


def prepare(options: argparse.Namespace) -> float:
    """Write the corpus, its tokens and a tokenizer into the folder; returns the mean of the target tokens of a batch."""
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


def stepper(
    options: argparse.Namespace, ranks: ProcessGroup, kind: str = "ours"
) -> Callable[[], tuple[float, float]]:
    """Does a turn of updates; returns the seconds of one, and those of the processor for this process."""
    tune_malloc()
    task, plan = opened(options)
    config = settings(options)
    model = build(preset_config(options.preset, options.vocab_size, dropout=0.1), seed=1)
    training = TrainState(model.train(), config, model.config.d_model, 10**6)
    parts = [[task.collate(part) for part in ranks.shard(task, rows)] for rows in plan]
    step = (
        ddp(task, training, config, ranks) if kind == "ddp" else partial(ours, task, training, config, ranks)
    )

    def turn() -> tuple[float, float]:
        ranks.all_reduce(0)
        start = time.perf_counter(), time.process_time()
        for _ in range(TURN):
            training.progress.step += 1
            step(parts[training.progress.step % len(parts)])
        return (time.perf_counter() - start[0]) / TURN, (time.process_time() - start[1]) / TURN

    return turn


def ours(
    task: TranslationTask, training: TrainState, config: TrainConfig, ranks: ProcessGroup, batches: list[Any]
) -> None:
    """An update as training makes it."""
    train_step(training, task, batches, config, ranks)


class Lossy(nn.Module):
    """A model whose forward is the loss, for DDP hears of a step by the call of forward."""

    def __init__(self, task: TranslationTask, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any) -> Tensor:
        return self.task.loss(self.model, batch).total


def ddp(
    task: TranslationTask, training: TrainState, config: TrainConfig, ranks: ProcessGroup
) -> Callable[[list[Any]], None]:
    """The same update with torch's own wrapper, which averages over processes."""
    wrapped = nn.parallel.DistributedDataParallel(Lossy(task, training.model), gradient_as_bucket_view=True)
    device = torch.device("cpu")
    precision = resolve_precision(config.precision, device)

    def step(batches: list[Any]) -> None:
        (count,) = ranks.all_reduce(task.count_labels(batches[0]))
        with autocast(precision, device):
            total = wrapped(batches[0])
        (total * ranks.world_size / count).backward()
        ranks.all_reduce(float(total.detach()))
        nn.utils.clip_grad_norm_(training.model.parameters(), config.clip_norm)
        set_rates(training.optimizers, training.schedule(training.progress.step))
        for optimizer in training.optimizers:
            optimizer.step()
        training.model.zero_grad(set_to_none=True)

    return step


def alone(options: argparse.Namespace, threads: int) -> Callable[[], tuple[float, float]]:
    """One process."""
    torch.set_num_threads(threads)
    return stepper(options, SINGLE_PROCESS)


def lead(options: argparse.Namespace, kind: str) -> Callable[[], tuple[float, float]]:
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
        subprocess.Popen([sys.executable, __file__, *arguments, "--other", kind], env=environment)
    os.environ.update(common | {"RANK": "0", "LOCAL_RANK": "0"})
    torch.set_num_threads(1)
    context = init_process_group(600.0)
    turn = stepper(options, context.__enter__(), kind)
    return lambda within=context: turn()  # type: ignore[misc]  # which ends when it is forgotten


def follow(options: argparse.Namespace) -> None:
    """Make every step that the first process makes."""
    torch.set_num_threads(1)
    try:
        with init_process_group(600.0) as ranks:
            turn = stepper(options, ranks, options.spare_storage)
            while True:
                turn()
    except (PeerLost, RuntimeError):
        os._exit(0)


if __name__ == "__main__":
    main()
