"""What is planned: a model, how it is trained, and on which batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from polyhead.analysis.cost.work import Load
from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.planning.probe import Blank
from polyhead.planning.texts import Texts
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import Choice
from polyhead.run import Run
from polyhead.train.distill import Distilled, Taught, Teacher, check_widths
from polyhead.train.loop import Task

BLANK = 1 << 24  # tokens of a batch without a text that is still made


class Subject(NamedTuple):
    """A model, how it is trained, and batches that stand for all."""

    name: str
    config: ModelConfig
    train: TrainConfig
    largest: Load
    some: list[tuple[Load, int, Any]]  # batches with the labels of each
    task: Task
    batches: float | None  # in an epoch
    steps: int | None
    cache: Choice | None
    context: int
    text: dict[str, float]  # what is known of the training text
    notes: list[str]  # what is no more than likely; who finds more adds it
    learns: str = ""  # the task, where there is one
    exports: Mapping[str, str] = {}  # the obstacle to each export format; "" if there is none

    @property
    def loads(self) -> list[Load]:
        """Of the batches that stand for all."""
        return [load for load, _, _ in self.some] or [self.largest]

    @property
    def teachers(self) -> list[Teacher]:
        """The runs that it learns from."""
        return list(self.task.teachers) if isinstance(self.task, Distilled) else []

    @property
    def mean(self) -> Load:
        """A batch of mean size, rounded."""
        numbers = zip(
            *((load.rows, load.length, load.source, load.labels) for load in self.loads), strict=True
        )
        return Load(*(round(sum(each) / len(self.loads)) for each in numbers))

    @property
    def labels(self) -> float:
        """Labels of a mean update."""
        counts = [count for _, count, _ in self.some] or [self.largest.labels]
        return self.train.accumulate * sum(counts) / len(counts)


def alone(config: ModelConfig, rows: int | None, length: int | None, tokens: float | None) -> Subject:
    """A model without a recipe: one row of its greatest length, AdamW."""
    rows, length = rows or 1, length or config.max_len
    if length > config.max_len:
        raise UserError(f"length is {length}, more than max_len ({config.max_len}) of the model")
    load = Load(rows, length, length if config.kind == "encoder-decoder" else 0)
    if config.kind == "encoder":
        load = load._replace(asked=rows if config.labels else max(1, round(0.15 * rows * length)))
    train = TrainConfig.model_validate({"steps": 1, "max_tokens": rows * length})
    steps = math.ceil(tokens / (rows * length)) if tokens else None
    return _blank(f"{config.kind} model", config, train, load, steps, None, config.max_len, [])


def unread(recipe: Recipe, origin: Run | None, gone: list[str]) -> Subject:
    """A recipe whose text is not there, for want of some files: every row as long as it may be."""
    notes = [
        f"{', '.join(gone)}: not found, so batches are the largest that may be, and epochs are not known"
    ]
    vocab_size = recipe.tokenizer.vocab_size
    labels: tuple[str, ...] = ()
    if origin:
        vocab_size, labels = origin.config.vocab_size, origin.config.labels
    elif recipe.tokenizer.kind.name in ("char", "byte"):
        notes.append(
            f"how many tokens a tokenizer of kind {recipe.tokenizer.kind.name} has is not known without the text"
        )
    name = recipe.task.name
    if name == "classification" and not labels:
        notes.append("classes are not known without the text: 2 are assumed")
        labels = ("0", "1")
    config = recipe.model.with_vocabulary(vocab_size, labels if name == "classification" else ())
    length = min(recipe.data.max_len, config.max_len)
    rows = max(1, recipe.train.max_tokens // length)
    load = Load(rows, length, length if config.kind == "encoder-decoder" else 0)
    if config.labels:
        load = load._replace(asked=rows)
    elif mask := recipe.task.options.get("mask"):
        load = load._replace(asked=max(1, round(mask * rows * length)))
    if recipe.distill:
        notes.append("what the teachers need is not known without the text")
    return _blank(
        recipe.out.name,
        config,
        recipe.train,
        load,
        updates(recipe.train, None),
        recipe.generation.cache,
        length,
        notes,
    )


def updates(train: TrainConfig, batches: float | None) -> int | None:
    """How many there will be, where that is known, whichever limit comes first."""
    limits = [train.steps] if train.steps else []
    if train.epochs and batches:
        limits.append(max(1, math.ceil(train.epochs * batches / train.accumulate)))
    return min(limits) if limits and (batches or not train.epochs) else None


def _blank(
    name: str,
    config: ModelConfig,
    train: TrainConfig,
    load: Load,
    steps: int | None,
    cache: Choice | None,
    context: int,
    notes: list[str],
) -> Subject:
    """A subject without a text."""
    task = Blank(config, load)
    small = load.tokens * max(1, train.accumulate) < BLANK
    some = [(load, task.count(None), task.batch(None))] if small else []
    return Subject(name, config, train, load, some, task, None, steps, cache, context, {}, notes)


def opened(recipe: Recipe, texts: Texts) -> Subject:
    """A recipe with its text: batches as training will cut them."""
    config = recipe.model.with_vocabulary(texts.vocab_size, texts.task.labels)
    if isinstance(texts.task, Distilled):
        check_widths(texts.task, config.d_model)
    some = [(load_of(config, texts.task, batch), texts.task.count(batch), batch) for batch in texts.some()]
    largest = load_of(config, texts.task, texts.hardest())
    context = min(recipe.data.max_len, config.max_len)
    return Subject(
        recipe.out.name,
        config,
        recipe.train,
        largest,
        some,
        texts.task,
        texts.batches,
        updates(recipe.train, texts.batches),
        recipe.generation.cache,
        context,
        {"lines": texts.lines, "bytes": texts.nbytes, "looked_at": round(texts.share, 4)},
        texts.notes,
    )


def load_of(config: ModelConfig, task: Task, batch: Any) -> Load:
    """How much a batch of a task is to a model; to a student, what it reads itself."""
    asked = task.count(batch)
    if isinstance(batch, Taught):
        batch = batch.own
    if config.kind == "encoder-decoder":
        rows, length = batch.target.shape
        return Load(rows, length, batch.source.size(1), asked)
    given = getattr(batch, "given", batch)
    rows, length = given.tokens.shape
    return Load(rows, length, 0, asked)
