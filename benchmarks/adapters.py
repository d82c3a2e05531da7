"""What an update costs when all weights learn, and when adapters learn beside them: time, memory, and the plan's bytes.

python benchmarks/adapters.py [--preset gpt2] [--vocabulary 50257] [--rows 4] [--length 128] [--rank 8] [--updates 3]

Each row is measured in a process of its own: processor seconds of an update, the middle one, and the greatest resident
memory beyond that before the model. Weights are drawn: an update costs the same whatever they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from plan import memory
from timing import table

from polyhead.config.recipe import TrainConfig
from polyhead.cost.memory import estimate_training_memory
from polyhead.cost.workload import BatchShape
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build, preset_config
from polyhead.train.loop import train_step
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import prepare_trainable


class Seen(NamedTuple):
    """Of some updates."""

    every: int  # parameters
    learned: int
    seconds: float
    nbytes: int
    planned: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("vocabulary", 50257), ("rows", 4), ("length", 128), ("rank", 8), ("updates", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--preset", default="gpt2")
    options = parser.parse_args()
    learns: dict[str, dict[str, Any]] = {
        "all": {},
        "adapters, q_proj and v_proj": {"adapt": {"rank": options.rank}},
        "adapters, every map": {"adapt": {"rank": options.rank, "parts": ["attn", "ffn"]}},
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
    learned, every = (
        sum(p.numel() for p in training.model.parameters() if p.requires_grad or any_)
        for any_ in (False, True)
    )
    batch, seconds = task.collate(None), []
    for step in range(1, options["updates"] + 2):
        start = time.process_time()
        training.progress.step = step
        train_step(training, task, [batch], train)
        seconds.append(time.process_time() - start)
    return Seen(every, learned, statistics.median(seconds[1:]), memory("VmHWM") - before, planned or 0)


if __name__ == "__main__":
    main()
