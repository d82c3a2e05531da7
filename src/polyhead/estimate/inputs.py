"""Inputs of an estimate: a model, its training configuration, and batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.cost.workload import BatchShape
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.estimate.data_sample import DataSample
from polyhead.run.run import Run
from polyhead.train.distill import DistillationTask, DistillBatch, Teacher, check_widths
from polyhead.train.loop import updates_of_epochs
from polyhead.train.loss_module import LossTask

_MAX_RANDOM_TOKENS = 1 << 24  # maximum tokens of a random batch


class EstimateInputs(NamedTuple):
    """A model, its training configuration, and representative batches."""

    name: str
    config: ModelConfig
    train: TrainConfig
    largest_batch: BatchShape
    sample_batches: list[tuple[BatchShape, int, Any]]  # (shape, number of labels, batch)
    task: LossTask
    batches: float | None  # in an epoch
    steps: int | None
    cache: Choice | None
    context: int
    text: dict[str, float]  # size of the training text; empty if unknown
    notes: list[str]  # assumptions; later steps append to it
    task_name: str = ""  # "" without a recipe
    exports: Mapping[str, str] = {}  # the obstacle to each export format; "" if there is none

    @property
    def batch_shapes(self) -> list[BatchShape]:
        """Shapes of the representative batches."""
        return [load for load, _, _ in self.sample_batches] or [self.largest_batch]

    @property
    def teachers(self) -> list[Teacher]:
        """The teachers of distillation."""
        return list(self.task.teachers) if isinstance(self.task, DistillationTask) else []

    @property
    def mean_batch(self) -> BatchShape:
        """A batch of mean size, rounded."""
        numbers = zip(
            *((load.rows, load.length, load.source, load.labels) for load in self.batch_shapes), strict=True
        )
        return BatchShape(*(round(sum(column) / len(self.batch_shapes)) for column in numbers))

    @property
    def labels(self) -> float:
        """Labels of a mean optimizer step."""
        counts = [count for _, count, _ in self.sample_batches] or [self.largest_batch.labels]
        return self.train.accumulate * sum(counts) / len(counts)


def model_inputs(
    config: ModelConfig, batch_size: int | None, seq_len: int | None, train_tokens: float | None
) -> EstimateInputs:
    """Inputs of a model without a recipe: by default one row of maximum length; AdamW."""
    batch_size, seq_len = batch_size or 1, seq_len or config.max_len
    if seq_len > config.max_len:
        raise UserError(f"seq_len is {seq_len}, more than max_len ({config.max_len}) of the model")
    load = BatchShape(batch_size, seq_len, seq_len if config.kind == "encoder-decoder" else 0)
    if config.kind == "encoder":
        load = load._replace(
            label_count=batch_size if config.labels else max(1, round(0.15 * batch_size * seq_len))
        )
    train = TrainConfig.model_validate({"steps": 1, "max_tokens": batch_size * seq_len})
    steps = math.ceil(train_tokens / (batch_size * seq_len)) if train_tokens else None
    return _random_inputs(f"{config.kind} model", config, train, load, steps, None, config.max_len, [])


def inputs_without_data(recipe: Recipe, origin: Run | None, missing_files: list[str]) -> EstimateInputs:
    """Inputs of a recipe with missing files: every row has the maximum length."""
    notes = [
        f"{', '.join(missing_files)}: not found; batches are assumed to have the maximum size, and "
        "epochs are unknown"
    ]
    vocab_size = recipe.tokenizer.vocab_size
    labels: tuple[str, ...] = ()
    if origin:
        vocab_size, labels = origin.config.vocab_size, origin.config.labels
    elif recipe.tokenizer.kind.name in ("char", "byte"):
        notes.append(
            f"the vocabulary size of a tokenizer of kind {recipe.tokenizer.kind.name!r} is unknown "
            "without the text"
        )
    name = recipe.task.name
    if name == "classification" and not labels:
        notes.append("the classes are unknown without the text: 2 are assumed")
        labels = ("0", "1")
    config = recipe.model.with_vocabulary(vocab_size, labels if name == "classification" else ())
    length = min(recipe.data.max_len, config.max_len)
    rows = max(1, recipe.train.max_tokens // length)
    load = BatchShape(rows, length, length if config.kind == "encoder-decoder" else 0)
    if config.labels:
        load = load._replace(label_count=rows)
    elif mask := recipe.task.options.get("mask"):
        load = load._replace(label_count=max(1, round(mask * rows * length)))
    if recipe.distill:
        notes.append("the cost of the teachers is unknown without the text")
    return _random_inputs(
        recipe.out.name,
        config,
        recipe.train,
        load,
        count_updates(recipe.train, None),
        recipe.generation.cache,
        length,
        notes,
    )


def count_updates(train: TrainConfig, batches: float | None) -> int | None:
    """The number of optimizer steps, by the first limit that is reached; None if unknown."""
    limits = [train.steps] if train.steps else []
    if train.epochs and batches:
        limits.append(updates_of_epochs(train.epochs, batches, train.accumulate))
    return min(limits) if limits and (batches or not train.epochs) else None


def _random_inputs(
    name: str,
    config: ModelConfig,
    train: TrainConfig,
    batch_shape: BatchShape,
    steps: int | None,
    cache: Choice | None,
    context: int,
    notes: list[str],
) -> EstimateInputs:
    """Inputs with random tokens."""
    task = RandomTokenTask(config, batch_shape)
    fits = batch_shape.tokens * max(1, train.accumulate) < _MAX_RANDOM_TOKENS
    samples = [(batch_shape, task.count_labels(None), task.collate(None))] if fits else []
    return EstimateInputs(
        name, config, train, batch_shape, samples, task, None, steps, cache, context, {}, notes
    )


def inputs_with_data(recipe: Recipe, sample: DataSample) -> EstimateInputs:
    """Inputs of a recipe with its text: batches as in training."""
    config = recipe.model.with_vocabulary(sample.vocab_size, sample.task.labels)
    if isinstance(sample.task, DistillationTask):
        check_widths(sample.task, config.d_model)
    samples = [
        (batch_shape_of(config, sample.task, batch), sample.task.count_labels(batch), batch)
        for batch in sample.sample_batches()
    ]
    largest = batch_shape_of(config, sample.task, sample.largest_batch())
    context = min(recipe.data.max_len, config.max_len)
    return EstimateInputs(
        recipe.out.name,
        config,
        recipe.train,
        largest,
        samples,
        sample.task,
        sample.batches,
        count_updates(recipe.train, sample.batches),
        recipe.generation.cache,
        context,
        {"lines": sample.lines, "bytes": sample.nbytes, "looked_at": round(sample.sampled_fraction, 4)},
        sample.notes,
    )


def batch_shape_of(config: ModelConfig, task: LossTask, batch: Any) -> BatchShape:
    """The shape of a batch of a task for a model; of a distillation batch, that of the student."""
    label_count = task.count_labels(batch)
    if isinstance(batch, DistillBatch):
        batch = batch.student
    if config.kind == "encoder-decoder":
        rows, length = batch.target.shape
        return BatchShape(rows, length, batch.source.size(1), label_count)
    inputs = getattr(batch, "masked", getattr(batch, "inputs", batch))
    rows, length = inputs.tokens.shape
    return BatchShape(rows, length, 0, label_count)
