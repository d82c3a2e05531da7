"""Plans against the runs they are plans of: batches of an epoch, seconds of an update, bytes of training.

./dev bench plan --data DIR              the recipes of the table in docs/cost.md, with the text in folders of
DIR ./dev bench plan recipe.yaml [KEY=VALUE ...]

A plan and a training follow each other, round by round, each in a process of its own. The training is the
loop of `polyhead train` with its batches in their order, without evaluations. With one thread both are timed
by the processor.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _shared import memory, table

from polyhead.config.recipe import Recipe
from polyhead.estimate import inputs
from polyhead.estimate.inputs import open_data_sample
from polyhead.estimate.plan import estimate
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import build
from polyhead.run.recipe import load_recipe
from polyhead.train.loggers import EtaReporter
from polyhead.train.loop import train_model
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState
from polyhead_lab.statistics import pick_clock

ROOT = Path(__file__).resolve().parents[1]
ROWS: dict[str, tuple[str, list[str]]] = {
    "translator, tiny": ("multi30k-en-de", ["data.root=multi30k"]),
    "translator, base": ("multi30k-en-de", ["data.root=multi30k", "model.preset=base"]),
    "characters": ("tinyshakespeare", ["data.root=tinyshakespeare"]),
    "language model": ("wikitext-2", ["data.root=wikitext-2"]),
    "language model, gpt2": (
        "wikitext-2",
        ["data.root=wikitext-2", "model={preset: gpt2}", "train.max_tokens=512"],
    ),
    "masked": ("wikitext-2-masked", ["data.root=wikitext-2"]),
    "classes, conv": ("sst2", ["data.root=sst2"]),
}


class Seen(NamedTuple):
    """Of a plan, or of a training."""

    parameters: int
    batches: float
    update: float
    nbytes: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", help="one recipe, in place of those of the table")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=Path(), help="where the folders of the texts are")
    parser.add_argument("--only", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of a probe; a training takes about twice as long"
    )
    options = parser.parse_args()
    wanted = {
        name: (str(ROOT / "recipes" / f"{ROWS[name][0]}.yaml"), placed(ROWS[name][1], options.data))
        for name in options.only
    }
    if options.recipe:
        wanted = {Path(options.recipe).stem: (options.recipe, options.changes)}
    rows = [["recipe", "parameters", "batches per epoch: planned, real", "ms an update: planned, measured",
        "error, each round",
             "MB: planned, measured"]]  # fmt: skip
    for name, (recipe, changes) in wanted.items():
        rounds = []
        for _ in range(options.rounds):
            planned = apart(planned_of, recipe, changes, options.seconds)
            steps = max(12, round(2 * options.seconds / planned.update))
            rounds.append((planned, apart(trained, recipe, changes, min(steps, 1000))))
        errors = [said.update / done.update - 1 for said, done in rounds]
        (said, done), (ours, real) = (
            rounds[-1],
            (statistics.median(pair[i].update for pair in rounds) for i in (0, 1)),
        )
        rows.append([
            name, f"{said.parameters:,}" + ("" if said.parameters == done.parameters
                else f" != {done.parameters:,}"),
            f"{said.batches:,.0f}, {done.batches:,.0f}", f"{1e3 * ours:,.0f}, {1e3 * real:,.0f}",
            ", ".join(f"{error:+.0%}" for error in errors), f"{said.nbytes / 1e6:,.0f}, "
                f"{done.nbytes / 1e6:,.0f}",
        ])  # fmt: skip
        print(table([rows[0], rows[-1]]), flush=True)
    print("\n" + table(rows))


def placed(changes: list[str], root: Path) -> list[str]:
    """The changes with the folder of the texts in its place."""
    return [
        f"data.root={root / change.removeprefix('data.root=')}" if change.startswith("data.root=") else change
        for change in changes
    ]


def apart(work: Callable[..., Seen], *given: Any) -> Seen:
    """Done in a process of its own, whose memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def planned_of(recipe: str, changes: list[str], seconds: float) -> Seen:
    """What a plan says."""
    tune_malloc()
    made = estimate(
        load_recipe(recipe, changes), decode_batch=(), context_len=8, seconds=seconds, clock=pick_clock()
    )
    assert made.time is not None and made.batches is not None, made.notes
    return Seen(made.parameters, made.batches, made.time.update, made.memory.total or 0)


class Told:
    """A reporter that keeps the rows, and the memory of the process before the first step."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_train(self, row: Any) -> None:
        self.rows.append(row)

    def log_valid(self, row: Any) -> None:
        pass

    def info(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


def trained(recipe: str, changes: list[str], steps: int) -> Seen:
    """What a training of so many steps is: seconds behind the first tenth of them, bytes beyond those before
    the model.
    """
    tune_malloc()
    inputs._MAX_SPLIT_BYTES = 1 << 62  # all of the text
    read: Recipe = load_recipe(recipe, changes)
    with tempfile.TemporaryDirectory() as folder:
        texts = open_data_sample(read, None, Path(folder))
        config = read.model.with_vocabulary(texts.vocab_size, texts.task.labels)
        texts.task.evaluate = lambda *_: {"loss": 0.0}  # type: ignore[method-assign]
        short = read.train.model_copy(
            update={"steps": steps, "epochs": None, "log_every": max(1, steps // 10), "eval_every": 10**9,
                "save_every": 10**9,
                    "patience": None, "best_metric": "loss"}
        )  # fmt: skip
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        model = build(config, 1)
        told, training = Told(), TrainState(model, short, config.d_model, steps)
        timed = EtaReporter(told, clock=pick_clock())
        timed.info("begin")
        strategy = parallelize(training, texts.task, short)
        train_model(training, strategy, short, Path(folder) / "checkpoints", timed)
        first, last = told.rows[0], told.rows[-1]
        update = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
        return Seen(
            sum(p.numel() for p in model.parameters()),
            len(texts.task.epoch_batches(0)),
            update,
            memory("VmHWM") - before,
        )


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - started:.0f} s, {torch.get_num_threads()} threads")
