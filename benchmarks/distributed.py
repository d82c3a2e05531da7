"""Models split over processes: the same losses, a share of the memory, models that fit only together.

./dev bench distributed NAME [...]    one of losses, memory, limit

Every figure is of a real training of the same recipe, started once for each form of `train.parallel`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from _shared import run_measurement, table
from safetensors.torch import load_file
from torch import Tensor

from polyhead.config.recipe import Recipe
from polyhead.train import loop
from polyhead.train.distributed.local_tensor import get_local
from polyhead.train.distributed.torch_process_group import init_process_group
from polyhead.train.loggers import Reporters
from polyhead.train.run_training import run_training
from polyhead.train.strategies.base import Strategy
from polyhead.train.update import PendingMetrics, StepMetrics
from polyhead.viz.run_record import read_metrics


class StoppedError(Exception):
    """The last line of a process that has failed."""


FORMS: dict[str, tuple[int, dict[str, Any]]] = {  # processes, train.parallel
    "replicate 2": (2, {}),
    "replicate 4": (4, {}),
    "shard 2": (2, {"shard": 2}),
    "shard 4": (4, {"shard": 4}),
    "replicate 2 x shard 2": (4, {"shard": 2}),
    "tensor 2": (2, {"tensor": 2}),
    "tensor 4": (4, {"tensor": 4}),
    "shard 2 x tensor 2": (4, {"shard": 2, "tensor": 2}),
    "context 2": (2, {"context": 2}),
    "context 4": (4, {"context": 4}),
    "pipeline 2, gpipe": (2, {"pipeline": 2, "schedule": "gpipe"}),
    "pipeline 2, 1f1b": (2, {"pipeline": 2}),
    "pipeline 2, interleaved": (2, {"pipeline": 2, "schedule": "interleaved"}),
    "pipeline 2, zero_bubble": (2, {"pipeline": 2, "schedule": "zero_bubble"}),
    "pipeline 2, zbv": (2, {"pipeline": 2, "schedule": "zbv"}),
    "pipeline 4, 1f1b": (4, {"pipeline": 4}),
    "shard 2 x pipeline 2": (4, {"shard": 2, "pipeline": 2}),
}


def losses(parser: argparse.ArgumentParser) -> None:
    """Losses and weights of each form against one process, and what a rank holds.

    ./dev bench distributed losses                       all forms
    ./dev bench distributed losses "shard 2" "tensor 2"  some
    """
    parser.add_argument("forms", nargs="*", default=list(FORMS), metavar="FORM")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    # eps is large beside rounding: Adam would make whole steps of gradients that are 0 but for it
    model = {"d_model": 64, "n_heads": 4, "n_layers": 8, "d_ff": 256}
    train = {"steps": options.steps, "optimizer": {"name": "adamw", "eps": 1e-3}}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        alone = start(folder, model, train, 1, {})[0]
        for form in options.forms:
            world, parallel = FORMS[form]
            ends = start(folder, model, train, world, parallel)
            loss = max(abs(a - b) for a, b in zip(alone["losses"], ends[0]["losses"], strict=True))
            weights = max(
                float((ends[0]["weights"][name] - w).abs().max()) for name, w in alone["weights"].items()
            )
            held = [max(end[part] for end in ends) / alone[part] for part in ("parameters", "state")]
            rows.append(
                [form, str(world), f"{loss:.1e}", f"{weights:.1e}", *(f"{share:.3f}" for share in held)]
            )
            print(f"{form}: done", file=sys.stderr)
    head = ["train.parallel", "processes", "loss, difference", "weights, difference",
        "parameters of a rank", "optimizer state of a rank"]  # fmt: skip
    print(f"{options.steps} steps, largest differences from one process; shares of one process")
    print(table([head, *rows]))


def memory(parser: argparse.ArgumentParser) -> None:
    """Peak memory of a rank above what it has before it builds the model.

    ./dev bench distributed memory                       25 million parameters on 1, 2 and 4 processes
    """
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    model = sizes(options.d_model, options.layers)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        alone = None
        for form, (world, parallel) in {"one process": (1, {}), **FORMS}.items():
            if form not in ("one process", "replicate 2", "shard 2", "shard 4"):
                continue
            ends = start(folder, model, {"steps": 4, "eval_every": 4, "save_every": 4}, world, parallel)
            peak = max(end["peak"] for end in ends)
            alone = alone or peak
            rows.append(
                [form, f"{ends[0]['parameters']:,}", f"{peak / 2**20:,.0f} MB", f"{peak / alone:.2f}"]
            )
            print(f"{form}: done", file=sys.stderr)
    print(table([["", "parameters of a rank", "peak of a rank", "of one process"], *rows]))


def limit(parser: argparse.ArgumentParser) -> None:
    """A model that does not fit into one process under a memory limit, trained by four.

    ./dev bench distributed limit                        under 1,500 MB of data (RLIMIT_DATA) each
    """
    parser.add_argument("--megabytes", type=int, default=1500)
    parser.add_argument("--d-model", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    model = sizes(options.d_model, options.layers)
    train = {"steps": 3, "eval_every": 3, "save_every": 3, "recompute": "blocks"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        for world, parallel in ((1, {}), (4, {"shard": 4})):
            try:
                ends = start(folder, model, train, world, parallel, options.megabytes * 2**20)
            except StoppedError as error:
                print(f"{world} process: {error}")
            else:
                losses_ = ", ".join(f"{loss:.4f}" for loss in ends[0]["losses"])
                print(f"{world} processes: trained, losses {losses_}; peak of a rank "
                    f"{max(end['peak'] for end in ends) / 2**20:,.0f} MB")  # fmt: skip


def sizes(d_model: int, layers: int) -> dict[str, int]:
    """Sizes of a model of the usual shape."""
    return {"d_model": d_model, "n_heads": 8, "n_layers": layers, "d_ff": 4 * d_model}


def write_text(folder: Path) -> None:
    """A text of which each word hints at the next."""
    rng = random.Random(1)
    words, lines = [f"{a}{b}" for a in "bdgklmnprst" for b in "aeiou"], []
    for _ in range(600):
        at, line = rng.randrange(len(words)), []
        for _ in range(rng.randint(4, 12)):
            line.append(words[at])
            at = (3 * at + rng.randrange(3)) % len(words)
        lines.append(" ".join(line))
    (folder / "train.txt").write_text("\n".join(lines[:550]) + "\n")
    (folder / "valid.txt").write_text("\n".join(lines[550:]) + "\n")


def start(
    folder: Path,
    model: dict[str, Any],
    train: dict[str, Any],
    world: int,
    parallel: dict[str, Any],
    data_bytes: int | None = None,
) -> list[dict[str, Any]]:
    """Train in so many processes; what each of them saw, with losses and final weights in the first."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    recipe = {
        "out": str(out), "task": "language-model", "tokenizer": {"vocab_size": 300},
        "data": {"root": str(folder), "train": ["train.txt"], "valid": ["valid.txt"], "max_len": 64},
        "model": {"kind": "decoder", "dropout": 0.0, "max_len": 64, "position": "rope"} | model,
        "train": {"max_tokens": 512, "precision": "fp32", "log_every": 1, "parallel": parallel,
            "compile": "none"} | train,
    }  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(recipe))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1}  # fmt: skip

    def restrict() -> None:
        if data_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))

    processes = []
    for rank in range(world):
        environment = {
            key: str(value) for key, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()
        }
        files = [str(folder / "recipe.json"), str(folder / f"rank-{rank}.json")]
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "rank", *files],
                env=os.environ | environment,
                preexec_fn=restrict,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ends = [(process, *process.communicate()) for process in processes]
    for process, _, err_text in ends:
        if process.returncode:
            raise StoppedError(err_text.strip().splitlines()[-1])
    found: list[dict[str, Any]] = [json.loads((folder / f"rank-{r}.json").read_text()) for r in range(world)]
    rows = read_metrics(out / "metrics.jsonl")
    found[0]["losses"] = [row["loss"] for row in rows if row.get("split") == "train"]
    found[0]["weights"] = load_file(out / "model.safetensors")
    return found


def train_rank(recipe_file: Path, result_file: Path) -> None:
    """Train as one of the processes, and write what it saw."""
    torch.set_num_threads(1)
    seen: dict[str, Any] = {}
    real_step = loop.train_step

    def count_step(strategy: Strategy, *arguments: Any) -> StepMetrics | PendingMetrics:
        metrics, training = real_step(strategy, *arguments), strategy.training
        seen["parameters"] = count_numbers(training.model.parameters())
        states = (optimizer.state_dict()["state"].values() for optimizer in training.optimizers)
        seen["state"] = count_numbers(x for entries in states for entry in entries for x in entry.values())
        return metrics

    loop.train_step = count_step
    recipe = Recipe.model_validate_json(recipe_file.read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with init_process_group(recipe.train.timeout) as ranks:
            run_training(recipe, report=Reporters(), ranks=ranks)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    seen["peak"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    result_file.write_text(json.dumps(seen))


def count_numbers(tensors: Iterator[Any]) -> int:
    """Numbers that this process holds of tensors, without counters."""
    return sum(get_local(x).numel() for x in tensors if isinstance(x, Tensor) and x.ndim)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        if sys.argv[1:2] == ["rank"]:
            train_rank(*map(Path, sys.argv[2:]))
        else:
            run_measurement(__doc__ or "", losses, memory, limit)
