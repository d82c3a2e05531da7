"""What an update of each optimizer costs, beside Muon of torch, paired in one run.

python benchmarks/optimizers.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from timing import interleaved, ratio, table
from torch import nn
from torch.optim import Optimizer

from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build, preset_config
from polyhead.train.muon import Muon
from polyhead.train.precision import resolve_precision


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"], help="sizes (default: tiny base)")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    tune_malloc()
    torch.set_num_threads(options.threads)
    fast = "fast" if resolve_precision("auto", torch.device("cpu")) == "bf16" else "slow"
    print(
        f"{options.threads} threads, medians of {options.n_rounds} interleaved rounds, a processor {fast} in bf16\n"
    )
    rows = [["model", "optimizer", "ms an update", "times Polyhead's Muon"]]
    for name in options.presets:
        updates = {
            kind: updater(name, options.vocab_size, kind) for kind in (*OPTIMIZER.names(), "torch's Muon")
        }
        seconds = interleaved(updates, options.n_rounds)
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
    main()
