"""Short trainings on small tasks, with the regular training loop."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import PairBatch, make_dummy_pairs
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import Loss
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import MetricsRow
from polyhead.train.loop import train_model
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.common import seq2seq_features, seq2seq_loss
from polyhead.train.train_state import TrainState
from polyhead.viz.plot import Curve
from polyhead_lab.registry import LabContext
from polyhead_lab.result import SEEDS_NOTE, DotPlot, Figure, LinePlot
from polyhead_lab.statistics import format_mean, time_interleaved, verdict_all, verdict_less
from polyhead_lab.tasks import SyntheticTask

FIRST_HELD_OUT = 1_000_000  # batch numbers from here on are not used in training
_BASE_CONFIG: dict[str, Any] = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 128,
    "dropout": 0.0,
    "norm_first": True,
}


class TrainingResult(NamedTuple):
    """A trained model, its curve and its held-out metrics."""

    model: Seq2Seq
    curve: list[tuple[float, float]]  # (step, training loss)
    loss: float  # nats per token on held-out rows; nan if the training diverged
    accuracy: float  # share of held-out tokens that are predicted correctly

    @property
    def mean_loss(self) -> float:
        """Mean training loss over all steps, nats per token; low if learned early, nan if diverged."""
        return math.nan if self.diverged else statistics.fmean(loss for _, loss in self.curve)

    @property
    def training_loss(self) -> float:
        """Training loss of the last steps; nan if there is none."""
        return self.curve[-1][1] if self.curve else math.nan

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.loss)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def shrink_if_quick(lab: LabContext, problem: SyntheticTask) -> SyntheticTask:
    """The task, with small batches in a quick run."""
    return lab.pick_size(problem, problem._replace(rows=8))


def make_small_config(problem: SyntheticTask, **changes: Any) -> ModelConfig:
    """Config of the lab's small model for a task, with changes."""
    return ModelConfig(
        **{**_BASE_CONFIG, "vocab_size": problem.vocab_size, "max_len": problem.max_len, **changes}
    )


def run_short_training(
    config: ModelConfig,
    problem: SyntheticTask,
    *,
    seed: int,
    steps: int,
    lr: float = 2e-3,
    warmup: int | None = None,
    schedule: str = "cosine",
    clip_norm: float = 1.0,
) -> TrainingResult:
    """Train from scratch for ``steps`` steps and evaluate on held-out rows. Warm-up is a tenth of the steps.

    Data order and initial weights are functions of the seed, equal for designs that are compared.
    """
    warmup = steps // 10 if warmup is None else warmup
    settings = TrainConfig(
        steps=steps, lr=lr, clip_norm=clip_norm, seed=seed, label_smoothing=0.0, precision="fp32", keep=1,
        schedule={"name": schedule, "warmup": warmup}, log_every=max(1, steps // 40),
        eval_every=steps, save_every=steps,
    )  # fmt: skip
    model, recorder, task = build(config, seed), LossRecorder(), GeneratedTask(problem, seed, steps)
    with tempfile.TemporaryDirectory() as checkpoints:
        try:
            training = TrainState(model, settings, config.d_model, steps)
            strategy = parallelize(training, task, settings)
            train_model(training, strategy, settings, Path(checkpoints), recorder)
        except UserError:  # the training loop stops a training that diverges
            return TrainingResult(model, recorder.curve, math.nan, math.nan)
    return TrainingResult(model, recorder.curve, task.metrics["loss"], task.metrics["accuracy"])


def train_designs(
    lab: LabContext,
    problem: SyntheticTask,
    designs: Mapping[str, ModelConfig],
    *,
    steps: int,
    lr: float = 5e-3,
    status_format: str = "seed {seed}, {name}: loss {run.loss:.3f}",
) -> dict[str, list[TrainingResult]]:
    """Train every design with each of three seeds, which give all designs the same data.

    ``status_format`` is the status line of a finished run.
    """
    runs: dict[str, list[TrainingResult]] = {name: [] for name in designs}
    for seed in lab.make_seeds(3):
        for name, config in designs.items():
            run = run_short_training(config, shrink_if_quick(lab, problem), seed=seed, steps=steps, lr=lr)
            runs[name].append(run)
            lab.info(status_format.format(seed=seed, name=name, run=run))
    return runs


LossesByTask = dict[str, dict[str, list[float]]]
"""task -> design -> a loss of every seed."""


class TaskRuns(dict[str, dict[str, list[TrainingResult]]]):
    """Runs of designs on several tasks: task -> design -> a run of every seed."""

    @property
    def loss(self) -> LossesByTask:
        """Held-out losses."""
        return {task: collect_losses(runs) for task, runs in self.items()}

    @property
    def mean_loss(self) -> LossesByTask:
        """Mean training losses."""
        return {
            task: {name: [run.mean_loss for run in seeds] for name, seeds in runs.items()}
            for task, runs in self.items()
        }

    def compare(self, a: str, b: str) -> str:
        """Format the losses of two designs on each task, at the end and over training."""
        ends, means = self.loss, self.mean_loss
        return "; ".join(
            f"{task}: {format_mean(ends[task][a])} against {format_mean(ends[task][b])} at the end, "
            f"{format_mean(means[task][a])} against {format_mean(means[task][b])} on average over training"
            for task in self
        )

    def verdict_no_worse(self, a: str, b: str, tolerance: float) -> bool | None:
        """Whether a is no worse than b, within a tolerance, on every task, at the end and over training."""
        return verdict_all(
            verdict_by_task(losses, a, b, -tolerance) for losses in (self.loss, self.mean_loss)
        )

    def make_figures(self) -> list[Figure]:
        """Held-out losses of each task, mean training losses of each, and the curves of each."""
        return [
            *(plot_losses(task, losses) for task, losses in self.loss.items()),
            *(plot_mean_losses(task, losses) for task, losses in self.mean_loss.items()),
            *(plot_loss_curves(task, runs) for task, runs in self.items()),
        ]


def format_by_task(losses: LossesByTask, a: str, b: str, words: str = "{} against {}") -> str:
    """Format the losses of two designs on each task."""
    return "; ".join(
        f"{task}: {words.format(format_mean(of[a]), format_mean(of[b]))}" for task, of in losses.items()
    )


def verdict_by_task(losses: LossesByTask, a: str, b: str, margin: float = 0.0) -> bool | None:
    """``verdict_less`` on every task."""
    return verdict_all(verdict_less(of[a], of[b], margin) for of in losses.values())


def describe_steps(lab: LabContext, tasks: Mapping[str, tuple[SyntheticTask, int]]) -> str:
    """The numbers of training steps and of seeds, for the description of a method."""
    steps = ", ".join(f"{task} {lab.pick_size(n, 4)} steps" for task, (_, n) in tasks.items())
    return f"{steps}; {len(lab.make_seeds(3))} seeds, which share data between designs."


def train_by_task(
    lab: LabContext,
    tasks: Mapping[str, tuple[SyntheticTask, int]],
    designs: Mapping[str, Mapping[str, Any]],
    status_format: str = "{task}, seed {seed}, {name}: loss {run.loss:.3f}",
) -> TaskRuns:
    """``train_designs`` on several tasks with their numbers of steps.

    A design is a mapping of changes to the small model.
    """
    runs = TaskRuns()
    for task, (problem, steps) in tasks.items():
        configs = {name: make_small_config(problem, **changes) for name, changes in designs.items()}
        of_task = status_format.replace("{task}", task)
        runs[task] = train_designs(
            lab, problem, configs, steps=lab.pick_size(steps, 4), status_format=of_task
        )
    return runs


def collect_losses(runs: Mapping[str, Sequence[TrainingResult]]) -> dict[str, list[float]]:
    """Held-out loss of every seed."""
    return {name: [run.loss for run in seeds] for name, seeds in runs.items()}


def collect_first_curves(runs: Mapping[str, Sequence[TrainingResult]]) -> list[Curve]:
    """Training loss of the first seed of every design, if it has a curve."""
    return [Curve(name, seeds[0].curve) for name, seeds in runs.items() if seeds[0].curve]


def plot_losses(label: str, losses: Mapping[str, Sequence[float]]) -> DotPlot:
    """Dot plot of the held-out losses of designs, for every seed."""
    return DotPlot(f"Held-out loss, {label}", "nats per token", losses, SEEDS_NOTE)


def plot_mean_losses(label: str, losses: Mapping[str, Sequence[float]]) -> DotPlot:
    """Dot plot of the mean training losses of designs, for every seed."""
    title = f"Speed of learning: mean loss over training, {label}"
    return DotPlot(title, "nats per token", losses, "Low if a design learns early.")


def plot_loss_curves(label: str, runs: Mapping[str, Sequence[TrainingResult]]) -> LinePlot:
    """Line plot of the training losses of designs, of the first seed."""
    return LinePlot(
        f"Training loss, {label} (first seed)", "step", collect_first_curves(runs), from_zero=True
    )


@dataclass
class LossRecorder:
    """Reporter that records the loss curve and prints nothing."""

    curve: list[tuple[float, float]] = field(default_factory=list)

    def log_train(self, row: MetricsRow) -> None:
        self.curve.append((float(row["step"]), float(row["loss"])))

    def log_valid(self, row: MetricsRow) -> None:
        pass

    def info(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class GeneratedTask:
    """Training task whose batches are generated on demand."""

    labels: tuple[str, ...] = ()

    def __init__(self, problem: SyntheticTask, seed: int, steps: int) -> None:
        self.problem, self.seed, self.steps = problem, seed, steps
        self.metrics: dict[str, float] = {}

    def epoch_batches(self, epoch: int) -> Sequence[int]:
        return range(epoch * self.steps, (epoch + 1) * self.steps)

    def largest_batch(self) -> int:
        return 0

    def shard(self, rows: int, n: int) -> list[int]:
        return [rows]

    def collate(self, rows: int) -> PairBatch:
        return self.problem.batch(self.seed, rows)

    def dummy_batch(self) -> PairBatch:
        return make_dummy_pairs()

    def count_labels(self, batch: PairBatch) -> int:
        return batch.n_tokens

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        return seq2seq_loss(model, batch, 0.0)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        assert isinstance(model, Seq2Seq)
        self.metrics = evaluate_held_out(model, self.problem)
        return self.metrics


def time_training_steps(
    lab: LabContext, designs: Mapping[str, ModelConfig], batch: PairBatch, rounds: int
) -> dict[str, list[float]]:
    """Seconds of a training step of every design, interleaved.

    Without the optimizer, whose cost depends only on the parameters.
    """

    def run_backward(model: Seq2Seq) -> None:
        seq2seq_loss(model, batch, 0.0).total.backward()
        model.zero_grad(set_to_none=True)

    models = {name: build(config, lab.seed).train() for name, config in designs.items()}
    return time_interleaved({name: partial(run_backward, model) for name, model in models.items()}, rounds)


@torch.inference_mode()
def evaluate_held_out(model: Seq2Seq, problem: SyntheticTask, n_batches: int = 4) -> dict[str, float]:
    """Loss (nats per token), perplexity and accuracy on held-out rows, equal for every design and seed."""
    model.eval()
    held_out = (problem.batch(0, number) for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + n_batches))
    return TokenLoss.from_parts(
        token_losses(seq2seq_features(model, batch), model.head, batch.labels) for batch in held_out
    ).compute_metrics()
