"""The bubble of a pipeline: waiting over working time, with stages that sleep instead of computing.

./dev bench pipeline                    4 processes; 4, 8 and 16 micro-batches; every schedule
./dev bench pipeline --processes 2 --micro-batches 4 8 --schedules 1f1b zbv

A stage sleeps in its forward pass, and twice as long in its backward pass: for the gradient of its input,
then for that of its weights. So no processor is needed: the figures are those of the schedule.
The formula is (p - 1) / (m v), v the stages of a process; zero-bubble schedules fill a part of that.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _shared import table
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from polyhead.config.model import ModelConfig
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.models import build
from polyhead.nn.loss import Loss
from polyhead.nn.stack import StackLayers
from polyhead.train.distributed.pipeline import SCHEDULES, PipelineModel
from polyhead.train.tasks.common import causal_lm_loss, count_causal_lm_labels

REPEATS = 3


class Sleep(torch.autograd.Function):
    """The identity, which sleeps in one or both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        """X, after a while."""
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, after a while."""
        time.sleep(ctx.seconds)
        return grad, None, None


class SleepingLayer(nn.Module):
    """A layer that sleeps as long in its forward pass as for each of its two gradients."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.ones(())), seconds

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        weight = Sleep.apply(self.weight, 0.0, self.seconds)
        return Sleep.apply(x, self.seconds, self.seconds) * weight


class LanguageModeling:
    """Next tokens, without anything else of a task."""

    def count_labels(self, batch: TokenWindows) -> int:
        """Number of labels."""
        return count_causal_lm_labels(batch)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        """Cross-entropy."""
        return causal_lm_loss(model, batch)


def measure_bubble(mesh: DeviceMesh, schedule: Any, n_micro_batches: int, seconds: float) -> float:
    """Waiting over working time of a step, of the fastest of ``REPEATS``."""
    size, stages_per_rank = mesh.size(), SCHEDULES[schedule].stages_per_rank
    config = ModelConfig(kind="decoder", vocab_size=8, d_model=4, n_heads=1, n_layers=size * stages_per_rank,
        d_ff=4, tie_embeddings="none", dropout=0.0)  # fmt: skip
    model = build(config, 1)
    model.stack.layers = StackLayers(
        SleepingLayer(seconds / stages_per_rank) for _ in range(size * stages_per_rank)
    )
    pipeline = PipelineModel(model, LanguageModeling(), mesh, schedule, n_micro_batches)
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    batches = [TokenWindows(tokens, None, tokens)] * n_micro_batches
    bubbles = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        pipeline.forward_backward(batches, 1.0)
        dist.barrier()
        work = 3 * seconds * n_micro_batches
        bubbles.append((time.perf_counter() - start - work) / work)
    return min(bubbles)


def run(rank: int, args: argparse.Namespace, port: int, out: Path) -> None:
    """One process: measure, and print the table on rank 0."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    mesh, rows = init_device_mesh("cpu", (args.processes,), mesh_dim_names=("pipeline",)), []
    for schedule in args.schedules:
        for n in args.micro_batches:
            formula = (args.processes - 1) / (n * SCHEDULES[schedule].stages_per_rank)
            bubble = measure_bubble(mesh, schedule, n, args.milliseconds / 1e3)
            rows.append([schedule, str(n), f"{bubble:.3f}", f"{formula:.3f}", f"{bubble - formula:+.3f}"])
    if rank == 0:
        out.write_text(table([["schedule", "micro-batches", "bubble", "formula", "difference"], *rows]))
    dist.destroy_process_group()
    os._exit(0)


def main() -> None:
    """Start the processes, and print what the first one wrote."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--schedules", nargs="+", choices=list(SCHEDULES), default=list(SCHEDULES))
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of each pass of a process")
    args = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "table"
        torch.multiprocessing.start_processes(
            run, (args, port, out), nprocs=args.processes, start_method="fork"
        )
        print(out.read_text())


if __name__ == "__main__":
    main()
