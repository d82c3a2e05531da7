"""Short trainings on small tasks, with the regular training loop."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.core.array_types import Ints
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import PairBatch, make_dummy_pairs
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.nn.device import place_batch
from polyhead.nn.loss import IGNORE_INDEX, Loss, cross_entropy
from polyhead.train.loggers import MetricsRow, Reporter
from polyhead.train.loop import train_model
from polyhead.train.loss_module import MapFn
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.common import seq2seq_features
from polyhead.train.train_state import TrainState
from polyhead_lab.registry import SEEDS_NOTE, DotPlot, Figure, LabContext, LinePlot, Points, SeedValues
from polyhead_lab.statistics import format_mean, time_interleaved, verdict_all, verdict_less

PAD, START = 0, 1
FIRST_SYMBOL = 2  # first token id that is not a special token
FIRST_HELD_OUT = 1_000_000  # batch numbers from here on are not used in training

Drawn = tuple[Ints, Ints, Ints]
DrawRows = Callable[[np.random.Generator, int], Drawn]
"""(generator, rows) -> source (B, S), decoder input (B, T), labels (B, T)."""


class SyntheticTask(NamedTuple):
    """A synthetic task: its vocabulary size, its maximum length, and how its rows are drawn."""

    vocab_size: int
    max_len: int
    draw: DrawRows
    rows: int = 64  # rows of a batch
    kind: str = "encoder-decoder"  # of the model; a decoder reads the target only, an encoder the source
    draw_held_out: DrawRows | None = None  # if held-out rows come from elsewhere

    def batch(self, seed: int, number: int, rows: int | None = None) -> PairBatch:
        """The batch with this number; the same for every model that is compared."""
        rng = np.random.default_rng([seed, number])
        draw = self.draw_held_out if number >= FIRST_HELD_OUT and self.draw_held_out else self.draw
        source, target, labels = (torch.from_numpy(x) for x in draw(rng, rows or self.rows))
        is_padding = source == PAD
        pos = torch.arange(source.size(1)).expand_as(source).masked_fill(is_padding, -1)
        n_labels = int((labels != IGNORE_INDEX).sum())
        return PairBatch(source, pos if bool(is_padding.any()) else None, target, labels, n_labels)


def make_copy_task(length: int = 12, symbols: int = 16, shortest: int | None = None) -> SyntheticTask:
    """Copy the source; with ``shortest`` rows have random lengths and the rest is padding."""

    def draw(rng: np.random.Generator, rows: int) -> Drawn:
        lengths = rng.integers(shortest or length, length + 1, rows)
        source = np.full((rows, length), PAD)
        labels = np.full((rows, length), IGNORE_INDEX)
        for row, n in enumerate(lengths):
            source[row, :n] = labels[row, :n] = rng.integers(FIRST_SYMBOL, FIRST_SYMBOL + symbols, n)
        target = np.full_like(labels, START)  # and all labels but the last
        target[:, 1:] = np.where(labels[:, :-1] == IGNORE_INDEX, PAD, labels[:, :-1])
        return source, target, labels

    return SyntheticTask(FIRST_SYMBOL + symbols, length + 1, draw)


def make_recall_task(items: int = 16, keys: int = 16, values: int = 8) -> SyntheticTask:
    """Associative recall: a source token is a key and a value; given a key, predict its value.

    Keys of a row are distinct. Query number i of the target is a key, its label the value. Queries have an
    order that is independent of the source, so that only the key identifies the value.
    """
    assert items <= keys, f"{items} distinct keys of {keys}"

    def draw(rng: np.random.Generator, rows: int) -> Drawn:
        key = rng.permuted(np.tile(np.arange(keys), (rows, 1)), axis=1)[:, :items]
        value = rng.integers(0, values, (rows, items))
        query_items = rng.permuted(np.tile(np.arange(items), (rows, 1)), axis=1)
        first_answer = FIRST_SYMBOL + keys * values + keys
        return (
            FIRST_SYMBOL + key * values + value,
            FIRST_SYMBOL + keys * values + np.take_along_axis(key, query_items, 1),
            first_answer + np.take_along_axis(value, query_items, 1),
        )

    return SyntheticTask(FIRST_SYMBOL + keys * values + keys + values, items + 1, draw)


def make_lookup_task(length: int = 8, symbols: int = 16) -> SyntheticTask:
    """Predict the entry of a fixed table for the source token and the decoder input at the same position.

    The table is drawn at random once, so only the feed-forward layers can store its symbols^2 entries.
    """
    table = np.random.default_rng(0).integers(0, symbols, (symbols, symbols))

    def draw(rng: np.random.Generator, rows: int) -> Drawn:
        a, b = rng.integers(0, symbols, (2, rows, length))
        return FIRST_SYMBOL + a, FIRST_SYMBOL + b, FIRST_SYMBOL + table[a, b]

    return SyntheticTask(FIRST_SYMBOL + symbols, length + 1, draw)


def make_delay_task(length: int = 24, delay: int = 2, symbols: int = 16) -> SyntheticTask:
    """Repeat the decoder's own input from ``delay`` tokens before; the source carries no information.

    Positions are all that is needed. The first ``delay`` tokens have no label.
    """

    def draw(rng: np.random.Generator, rows: int) -> Drawn:
        target = rng.integers(FIRST_SYMBOL, FIRST_SYMBOL + symbols, (rows, length))
        labels = np.full((rows, length), IGNORE_INDEX)
        labels[:, delay:] = target[:, :-delay]
        return np.full((rows, 1), START), target, labels

    return SyntheticTask(FIRST_SYMBOL + symbols, length, draw)


def make_latch_task(length: int = 32, values: int = 8) -> SyntheticTask:
    """Output the one marked token of the decoder's own input from its place on (Bengio et al., 1994).

    The marked token is one of ``values`` symbols, at a random place; the others are noise of as many other
    symbols. Tokens before it have no label. The source carries no information.
    """

    def draw(rng: np.random.Generator, rows: int) -> Drawn:
        value, place = rng.integers(0, values, rows), rng.integers(0, length, rows)
        target = rng.integers(FIRST_SYMBOL + values, FIRST_SYMBOL + 2 * values, (rows, length))
        target[np.arange(rows), place] = FIRST_SYMBOL + value
        is_label = np.arange(length) >= place[:, None]
        labels = np.where(is_label, FIRST_SYMBOL + value[:, None], IGNORE_INDEX)
        return np.full((rows, 1), START), target, labels

    return SyntheticTask(FIRST_SYMBOL + 2 * values, length, draw)


COPY_AND_RECALL = {"copying": (make_copy_task(), 200), "recall": (make_recall_task(), 250)}
"""Tasks that attention designs are compared on, with their numbers of training steps."""


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

    model: Any
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
    sizes = {"kind": problem.kind, "vocab_size": problem.vocab_size, "max_len": problem.max_len}
    return ModelConfig(**{**_BASE_CONFIG, **sizes, **changes})


def pick_model_size(lab: LabContext, d_ff: int = 256) -> dict[str, int]:
    """Sizes of the models whose speed is measured."""
    return lab.pick_size({"d_model": 128, "d_ff": d_ff}, {"d_model": 16, "d_ff": 16})


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


LossesByTask = dict[str, SeedValues]
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
            *(
                DotPlot(
                    f"Speed of learning: mean loss over training, {task}",
                    "nats per token",
                    losses,
                    "Low if a design learns early.",
                )
                for task, losses in self.mean_loss.items()
            ),
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
    lr: float = 5e-3,
) -> TaskRuns:
    """``train_designs`` on several tasks with their numbers of steps.

    A design is a mapping of changes to the small model.
    """
    runs = TaskRuns()
    for task, (problem, steps) in tasks.items():
        configs = {name: make_small_config(problem, **changes) for name, changes in designs.items()}
        of_task = status_format.replace("{task}", task)
        runs[task] = train_designs(
            lab, problem, configs, steps=lab.pick_size(steps, 4), lr=lr, status_format=of_task
        )
    return runs


def collect_losses(runs: Mapping[str, Sequence[TrainingResult]]) -> SeedValues:
    """Held-out loss of every seed."""
    return {name: [run.loss for run in seeds] for name, seeds in runs.items()}


def collect_first_curves(runs: Mapping[str, Sequence[TrainingResult]]) -> dict[str, Points]:
    """Training loss of the first seed of every design, if it has a curve."""
    return {name: seeds[0].curve for name, seeds in runs.items() if seeds[0].curve}


def plot_losses(label: str, losses: SeedValues) -> DotPlot:
    """Dot plot of the held-out losses of designs, for every seed."""
    return DotPlot(f"Held-out loss, {label}", "nats per token", losses, SEEDS_NOTE)


def plot_loss_curves(label: str, runs: Mapping[str, Sequence[TrainingResult]]) -> LinePlot:
    """Line plot of the training losses of designs, of the first seed."""
    return LinePlot(
        f"Training loss, {label} (first seed)", "step", collect_first_curves(runs), from_zero=True
    )


@dataclass
class LossRecorder(Reporter):
    """Reporter that records the loss curve and prints nothing."""

    curve: list[tuple[float, float]] = field(default_factory=list)

    def log_train(self, row: MetricsRow) -> None:
        self.curve.append((float(row["step"]), float(row["loss"])))


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
        return compute_loss(model, batch)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        self.metrics = evaluate_held_out(model, self.problem)
        return self.metrics


def time_training_steps(
    lab: LabContext, designs: Mapping[str, ModelConfig], batch: PairBatch, rounds: int
) -> SeedValues:
    """Seconds of a training step of every design, interleaved.

    Without the optimizer, whose cost depends only on the parameters.
    """
    models = {name: build(config, lab.seed).train() for name, config in designs.items()}
    return time_interleaved(
        {name: partial(run_backward, model, batch) for name, model in models.items()}, rounds
    )


def run_backward(model: nn.Module, batch: PairBatch) -> None:
    """Forward and backward pass of a batch; the gradients are discarded."""
    compute_loss(model, batch).total.backward()
    model.zero_grad(set_to_none=True)


def compute_head_input(model: Any, batch: PairBatch) -> Tensor:
    """Features that the LM head reads, also of a decoder or an encoder alone."""
    if model.config.kind == "encoder":
        features: Tensor = model.features(batch.source, batch.source_pos)
        return features
    return model.features(batch.target) if model.config.kind == "decoder" else seq2seq_features(model, batch)


def compute_loss(model: Any, batch: PairBatch) -> Loss:
    """Cross-entropy of a batch, as a sum over labels."""
    batch, host = place_batch(model, batch)
    return cross_entropy(compute_head_input(model, batch), model.head, batch.labels, host=host.labels)


@torch.inference_mode()
def evaluate_held_out(model: Any, problem: SyntheticTask, n_batches: int = 4) -> dict[str, float]:
    """Loss (nats per token), perplexity and accuracy on held-out rows, equal for every design and seed."""
    model.eval()
    held_out = (problem.batch(0, number) for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + n_batches))
    return TokenLoss.from_parts(
        token_losses(compute_head_input(model, batch), model.head, batch.labels) for batch in held_out
    ).compute_metrics()
