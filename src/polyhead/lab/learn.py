"""Short trainings on small tasks, by the loop that trains everything else."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from polyhead.analysis.charts import Curve
from polyhead.analysis.recovered import Recovered, recovered
from polyhead.config import ModelConfig
from polyhead.data.collate import Batch
from polyhead.errors import UserError
from polyhead.lab.catalogue import Bench
from polyhead.lab.result import SEEDS, Dots, Plot
from polyhead.lab.tasks import Problem
from polyhead.models.build import build
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import Loss
from polyhead.recipe import TrainConfig
from polyhead.train.loop import train
from polyhead.train.ranks import Each
from polyhead.train.reporting import Row
from polyhead.train.tasks import writing
from polyhead.train.training import Training

HELD_OUT = 1_000_000  # numbers of batches from here on are never learned from
BASE: dict[str, Any] = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 128,
    "dropout": 0.0,
    "norm_first": True,
}


class Learned(NamedTuple):
    """A model after its training, and what it came to."""

    model: Seq2Seq
    curve: list[tuple[float, float]]  # (step, training loss)
    loss: float  # nats a token on held-out rows; nan if the training diverged
    accuracy: float  # share of held-out tokens that are right

    @property
    def slowness(self) -> float:
        """Mean training loss over all steps, nats a token: low for who learns early. nan if the training diverged."""
        return math.nan if self.diverged else statistics.fmean(loss for _, loss in self.curve)

    @property
    def training_loss(self) -> float:
        """Of the last steps; nan if there is none."""
        return self.curve[-1][1] if self.curve else math.nan

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.loss)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def sized(bench: Bench, problem: Problem) -> Problem:
    """The task, with few rows in a batch if the run is a quick one."""
    return bench.size(problem, problem._replace(rows=8))


def design(problem: Problem, **changes: Any) -> ModelConfig:
    """The small model of the lab, fitted to a task, with changes."""
    return ModelConfig(**{**BASE, "vocab_size": problem.vocab_size, "max_len": problem.max_len, **changes})


def learn(
    config: ModelConfig,
    problem: Problem,
    *,
    seed: int,
    steps: int,
    lr: float = 2e-3,
    warmup: int | None = None,
    schedule: str = "cosine",
    clip_norm: float = 1.0,
) -> Learned:
    """Train from scratch for some steps (warm-up: a tenth of them) and judge on rows it never saw.

    Order of the data and initial weights are functions of the seed, equal for designs that are compared.
    """
    warmup = steps // 10 if warmup is None else warmup
    settings = TrainConfig(
        steps=steps, lr=lr, clip_norm=clip_norm, seed=seed, label_smoothing=0.0, precision="fp32", keep=1,
        schedule={"name": schedule, "warmup": warmup}, log_every=max(1, steps // 40),
        eval_every=steps, save_every=steps,
    )  # fmt: skip
    model, listener, task = build(config, seed), Listener(), Generated(problem, seed, steps)
    with tempfile.TemporaryDirectory() as checkpoints:
        try:
            train(
                Training(model, settings, config.d_model, steps), task, settings, Path(checkpoints), listener
            )
        except UserError:  # the loop gives up a training that diverges
            return Learned(model, listener.curve, math.nan, math.nan)
    return Learned(model, listener.curve, task.measured["loss"], task.measured["accuracy"])


def trained(
    bench: Bench,
    problem: Problem,
    designs: Mapping[str, ModelConfig],
    *,
    steps: int,
    lr: float = 5e-3,
    told: str = "seed {seed}, {name}",
) -> dict[str, list[Learned]]:
    """A run of every design for each of three seeds, which give all designs the same data; ``told`` says which has ended."""
    runs: dict[str, list[Learned]] = {name: [] for name in designs}
    for seed in bench.seeds(3):
        for name, config in designs.items():
            run = learn(config, sized(bench, problem), seed=seed, steps=steps, lr=lr)
            runs[name].append(run)
            bench.say(f"{told.format(seed=seed, name=name)}: loss {run.loss:.3f}")
    return runs


def by_task(
    bench: Bench,
    tasks: Mapping[str, tuple[Problem, int]],
    designs: Mapping[str, Mapping[str, Any]],
    told: str = "{task}, seed {seed}, {name}",
) -> dict[str, dict[str, list[Learned]]]:
    """As ``trained`` on tasks of so many steps each: task -> design -> runs. A design is what it changes in the small model."""
    found = {}
    for task, (problem, steps) in tasks.items():
        configs = {name: design(problem, **changes) for name, changes in designs.items()}
        of_task = told.replace("{task}", task)
        found[task] = trained(bench, problem, configs, steps=bench.size(steps, 4), told=of_task)
    return found


def losses(runs: Mapping[str, Sequence[Learned]]) -> dict[str, list[float]]:
    """The held-out loss of every seed."""
    return {name: [run.loss for run in seeds] for name, seeds in runs.items()}


def first_curves(runs: Mapping[str, Sequence[Learned]]) -> list[Curve]:
    """The training loss of the first seed of every design, if it has one."""
    return [Curve(name, seeds[0].curve) for name, seeds in runs.items() if seeds[0].curve]


def slowness(runs: Mapping[str, Sequence[Learned]]) -> dict[str, list[float]]:
    """The mean loss over training of every seed."""
    return {name: [run.slowness for run in seeds] for name, seeds in runs.items()}


def loss_dots(of: str, loss: Mapping[str, Sequence[float]]) -> Dots:
    """The losses of designs after training, for every seed."""
    return Dots(f"Held-out loss, {of}", "nats a token", loss, SEEDS)


def slowness_dots(of: str, slow: Mapping[str, Sequence[float]]) -> Dots:
    """The mean losses of designs over training, for every seed."""
    title = f"How fast it learns: mean loss over training, {of}"
    return Dots(title, "nats a token", slow, "Low for who learns early.")


def loss_plot(of: str, runs: Mapping[str, Sequence[Learned]]) -> Plot:
    """The losses of designs while they were trained, of the first seed."""
    return Plot(f"Training loss, {of} (first seed)", "step", first_curves(runs), from_zero=True)


@dataclass
class Listener:
    """The reporter of a short training: keeps the curve, says nothing."""

    curve: list[tuple[float, float]] = field(default_factory=list)

    def train(self, row: Row) -> None:
        self.curve.append((float(row["step"]), float(row["loss"])))

    def valid(self, row: Row) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class Generated:
    """A task of the training loop whose batches are made when they are needed."""

    labels: tuple[str, ...] = ()

    def __init__(self, problem: Problem, seed: int, steps: int) -> None:
        self.problem, self.seed, self.steps = problem, seed, steps
        self.measured: dict[str, float] = {}

    def plan(self, epoch: int) -> Sequence[int]:
        return range(epoch * self.steps, (epoch + 1) * self.steps)

    def hardest(self) -> int:
        return 0

    def deal(self, rows: int, n: int) -> list[int]:
        return [rows]

    def batch(self, rows: int) -> Batch:
        return self.problem.batch(self.seed, rows)

    def count(self, batch: Batch) -> int:
        return batch.n_tokens

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        return writing.loss(model, batch, 0.0)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        assert isinstance(model, Seq2Seq)
        self.measured = judge(model, self.problem)
        return self.measured


def backward(model: Seq2Seq, batch: Batch) -> None:
    """One training step but for the optimiser, whose cost is that of the parameters alone."""
    writing.loss(model, batch, 0.0).total.backward()
    model.zero_grad(set_to_none=True)


@torch.inference_mode()
def judge(model: Seq2Seq, problem: Problem, batches: int = 4) -> dict[str, float]:
    """Loss (nats a token), perplexity and accuracy on held-out rows, the same ones for every design and seed."""
    model.eval()
    held_out = (problem.batch(0, number) for number in range(HELD_OUT, HELD_OUT + batches))
    return Recovered.of(
        recovered(writing.features(model, batch), model.head, batch.labels) for batch in held_out
    ).measures()
