"""Training steps in fp32: products by oneDNN against those of torch, which asks MKL, and against bf16, paired in one run.

MKL is told to take AVX2, as it does by itself on processors of AMD, so that any machine with AVX-512 shows the same; with
--all-of-mkl it may take what it likes.

python benchmarks/products.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

if "--all-of-mkl" not in sys.argv:
    os.environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"  # is read when torch is

import torch
from timing import interleaved, ratio, table
from torch import Tensor, nn

from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.onednn_matmul import OneDnnMatmul
from polyhead.models import CausalLM, Seq2Seq, build, preset_config
from polyhead.nn.loss import cross_entropy
from train import SMOOTHING, some_batches, stepper

INSIDE = {
    "fp32, MKL": nullcontext,
    "fp32, oneDNN": OneDnnMatmul,
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--all-of-mkl", action="store_true", help="do not hold MKL back")
    options = parser.parse_args()
    tune_malloc()  # as the command line does
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, medians of {options.n_rounds} interleaved rounds\n")
    rows = [["model", "products", "ms a step", "times as fast"]]
    for name in ("tiny", "base", "gpt2"):
        model, batches = translator(name) if name != "gpt2" else language_model(name)
        steps = {how: stepper(model, loss_of(model), batches, inside) for how, inside in INSIDE.items()}
        seconds = interleaved(steps, options.n_rounds, warmup=2)
        for how, times in seconds.items():
            faster = ratio(seconds["fp32, MKL"], times)
            rows.append([name, how, f"{1e3 * statistics.median(times):,.0f}", f"{faster:.2f}"])
    print(table(rows))


def translator(name: str) -> tuple[nn.Module, list[tuple[Tensor | None, ...]]]:
    """With batches of real text, whose lengths differ."""
    options = argparse.Namespace(source=None, vocab_size=10000, max_tokens=3200 if name == "tiny" else 1600)
    with tempfile.TemporaryDirectory() as folder:
        batches = some_batches(options, Path(folder))[1]
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
    main()
