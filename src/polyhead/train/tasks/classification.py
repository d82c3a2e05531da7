"""Tasks on texts with labels: what is learned of them, and their texts, opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.model import SINGLE_LABEL, ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.i18n import tr
from polyhead.core.option_types import Decay
from polyhead.core.registry import TASK
from polyhead.data.batching.encoder_inputs import EncoderBatch, make_dummy_input
from polyhead.data.readers.labeled import (
    LabeledFiles,
    LabelKind,
    describe_similar_labels,
    open_labeled,
    read_labeled_texts,
)
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.labeled_store import LabeledStore, SpanStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts
from polyhead.evaluate.classify import ClassScores, calibration_error, fit_temperature, log_softmax
from polyhead.evaluate.text_numbers import Numbers
from polyhead.models import Classifier, TokenClassifier
from polyhead.nn.device import place_batch, to_model_device
from polyhead.nn.loss import IGNORE_INDEX, Loss
from polyhead.nn.packed_rows import token_rows
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import TaskLogits, report_split, warn_learned_texts
from polyhead.train.tasks.store_task import RowTask

# a class without validation texts is reported if at least this many are expected; fewer may be chance
MIN_EXPECTED_TEXTS = 5


class ClassificationBatch(NamedTuple):
    """A batch: encoder inputs, and the class of each row."""

    inputs: EncoderBatch
    labels: Tensor  # (B,) int64


class LabeledTextTask(RowTask[LabeledStore]):
    """An opened task on labeled texts; the objective has what is learned of them."""

    kind = "encoder"

    def __init__(
        self,
        stores: Mapping[str, LabeledStore],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        recipe: Recipe,
        objective: LabeledTask,
    ) -> None:
        self.objective, self.problem_type = objective, objective.problem_type
        self.title, self.usage = objective.title, objective.usage
        super().__init__(stores, recipe.train)
        self.labels, self.tokenizer = tuple(labels), tokenizer

    def retokenize(self, other_run: Run, recipe: Recipe) -> LabeledTextTask:
        """The same texts, row by row, with tokenizer and max_len of another run, without token dropout."""
        limits, sections = {"max_len": other_run.config.max_len}, {"model": recipe.model, "data": recipe.data}
        update = {name: section.model_copy(update=limits) for name, section in sections.items()}
        recipe = recipe.model_copy(update=update)
        stores = {
            split: open_labeled_store(recipe, split, self.labels, other_run.tokenizer)
            for split in ("train", "valid")
        }
        # with this tokenizer, a single text may be longer than ``max_tokens`` of a whole batch of the student
        max_tokens = max(self.config.max_tokens, int(stores["valid"].lengths.max()))
        config = self.config.model_copy(update={"max_tokens": max_tokens})
        recipe = recipe.model_copy(update={"train": config})
        return LabeledTextTask(stores, self.labels, other_run.tokenizer, recipe, type(self.objective)())

    def collate(self, rows: np.ndarray) -> ClassificationBatch:
        """Padded batch of some training texts, with token dropout."""
        inputs, labels = self.make_batch("train", rows)
        return ClassificationBatch(inputs._replace(tokens=self._drop_tokens(inputs.tokens)), labels)

    def make_batch(self, split: str, rows: IdArray) -> ClassificationBatch:
        return ClassificationBatch(*self.stores[split].collate(rows, self.tokenizer.pad_id))

    def dummy_batch(self) -> ClassificationBatch:
        """A batch without tokens and labels."""
        return ClassificationBatch(make_dummy_input(), self.objective.dummy_labels(len(self.labels)))

    def count_labels(self, batch: ClassificationBatch) -> int:
        """Number of texts, or words."""
        return int(select_targets(batch.labels, batch.labels).size(0))

    def loss(self, model: nn.Module, batch: ClassificationBatch) -> Loss:
        """The loss of the objective, with label smoothing, as a sum over texts."""
        batch, host = place_batch(model, batch)
        logits = class_logits(model, batch.inputs, host.inputs)
        return self.objective.loss(logits, batch.labels, self.config.label_smoothing or 0.0, host.labels)

    def compute_logits(self, model: nn.Module, batch: ClassificationBatch) -> TaskLogits:
        """Logits of every text."""
        assert isinstance(model, Classifier)
        batch, host = place_batch(model, batch)
        inputs = batch.inputs.model_args(model.config.n_segments, host.inputs)
        hidden, pos = model.encoder(*inputs), batch.inputs.pos
        logits = model.classifier(model.dropout(model.pooler(hidden, pos)))
        tokens = hidden.flatten(0, 1)
        if pos is not None:
            tokens = tokens.index_select(0, token_rows(pos, host.inputs.pos))
        return TaskLogits(logits, batch.labels, tokens, host.labels)

    def calibrate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, str]:
        """Divide the classifier of a model by the temperature of the validation text; returns the fact."""
        if not self.objective.calibrate:
            return {}
        assert isinstance(model, Classifier)

        @torch.no_grad()
        def compute_batch(rows: IdArray) -> tuple[list[list[float]], list[int]]:
            texts, labels = to_model_device(model, self.make_batch("valid", rows))
            return class_logits(model, texts).double().tolist(), labels.tolist()

        logits, labels = zip(*map_fn(compute_batch, self.plan_eval("valid")), strict=True)
        scores, targets = np.array([*chain(*logits)]), np.array([*chain(*labels)])
        temperature = fit_temperature(scores, targets)
        before, after = (calibration_error(log_softmax(scores / t), targets) for t in (1.0, temperature))
        with torch.no_grad():
            for parameter in model.classifier.parameters():
                parameter.div_(temperature)
        return {
            "temperature": f"{temperature:.3f} (ECE of the validation text {after:.4f}, was {before:.4f})"
        }

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss without smoothing, and the measures of the objective, of the texts of a split."""
        store = self.stores[split]

        @torch.no_grad()
        def classify_batch(rows: np.ndarray) -> tuple[float, list[list[float]]]:
            texts, labels = to_model_device(model, self.make_batch(split, rows))
            logits = class_logits(model, texts)
            nll = float(self.objective.loss(logits, labels, 0.0).nll)
            return nll, select_targets(logits, labels).tolist()

        plan = self.plan_eval(split)
        nll, logits = zip(*map_fn(classify_batch, plan), strict=True)
        targets = store.targets(np.concatenate(plan))
        metrics = self.objective.measure(np.array([*chain(*logits)]), targets, self.labels)
        return {"loss": sum(nll) / len(targets)} | metrics

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """The metrics of ``evaluate`` on the validation and, if there is one, the test text."""
        facts: dict[str, str] = {}
        for split in [split for split in self.stores if split != "train"]:
            report = self.stores[split].report
            if split == "test" and report.used < report.total:
                facts["test texts"] = str(report)
            metrics = self.evaluate(run.model, map_fn, split)
            facts |= {f"{split} {name}": f"{value:.4f}" for name, value in metrics.items()}
        return facts

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the training texts that the baselines need."""
        return self.objective.count(self.train.targets(range(len(self.train))), self.labels)

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines that predict the same for all texts."""
        store = self.stores[split]
        return self.objective.baselines(counts, store.targets(range(len(store))), self.labels)

    def _drop_tokens(self, tokens: Tensor) -> Tensor:
        """Replace a share of the tokens by the mask, drawn from torch's generator: (B, T) -> (B, T)."""
        if not self.objective.token_dropout:
            return tokens
        special = torch.isin(tokens, torch.tensor(self.tokenizer.special_ids))
        hidden = (torch.rand(tokens.shape) < self.objective.token_dropout) & ~special
        return tokens.masked_fill(hidden, self.tokenizer.mask_id)


class LabeledTask(ABC):
    """What is learned of each text; as a class, a task before its data is opened."""

    kind = "encoder"
    label_smoothing = 0.0
    problem_type: ProblemType
    label_kind: LabelKind
    title: str  # of the run's README.md
    usage = "polyhead classify . input.txt"  # example command that uses the run
    measure_run: ClassVar[Callable[..., ClassScores]]  # measures of a run on other texts
    opened_type: ClassVar[type[LabeledTextTask]] = LabeledTextTask
    calibrate = False
    threshold: float  # lowest probability of one of several labels that is predicted

    def __init__(self, *, token_dropout: Decay = 0.0) -> None:
        self.token_dropout = token_dropout

    def dummy_labels(self, n_labels: int) -> Tensor:
        """Labels of a row that has no loss."""
        return torch.full((1, n_labels), torch.nan)

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, smoothing: float, host: Tensor | None = None) -> Loss:
        """The sum over the rows with labels; ``host`` are the labels on the CPU."""

    @abstractmethod
    def measure(self, logits: Numbers, targets: Any, labels: Sequence[str]) -> dict[str, float]:
        """Measures of logits (N, L) besides the loss."""

    @staticmethod
    @abstractmethod
    def count(targets: Any, labels: Sequence[str]) -> TrainingCounts:
        """Counts of the training text for the baselines."""

    @staticmethod
    @abstractmethod
    def baselines(counts: TrainingCounts, targets: Any, labels: Sequence[str]) -> Baselines:
        """Scores of trivial predictions."""

    def prepare(self, train: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
        """Report the labels of the training text, and set what the loss needs of them."""
        report_labels(train, labels, report)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column."""
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @staticmethod
    def iter_texts(recipe: Recipe) -> Iterator[str]:
        """All training texts, to train a tokenizer on."""
        return read_labeled_texts(open_split_labeled(recipe, "train"))

    @classmethod
    @abstractmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The names of the outputs, from the training text."""

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LabeledTextTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @classmethod
    def open_with_labels(
        cls, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> LabeledTextTask:
        """As ``open``, with known labels; texts of a split that the training text has too are reported."""
        stores = {split: open_labeled_store(recipe, split, labels, tokenizer) for split in recipe.data.splits}
        for split, store in stores.items():
            report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
        objective: LabeledTask = TASK.build(recipe.task)
        objective.threshold = recipe.generation.threshold
        objective.prepare(stores["train"], labels, report)
        task = cls.opened_type(stores, labels, tokenizer, recipe, objective)
        texts = {split: store.hash_texts() for split, store in stores.items()}
        for split, store in stores.items():
            if split != "train":
                lines = store.line_numbers.tolist()
                warn_learned_texts(split, texts[split], lines, texts["train"], report)
            for warning in filter(None, objective.list_warnings(split, store, texts[split], labels)):
                report.info(tr("warning: {message}", message=warning))
        if cls.problem_type == SINGLE_LABEL and recipe.data.valid_fraction:
            warn_missing_classes(task, report)
        report.info(task.make_sampler(task.train).describe())
        return task

    def list_warnings(
        self, split: str, store: LabeledStore, texts: Sequence[int], labels: Sequence[str]
    ) -> list[str]:
        """Warnings of the labels of a split, whose ``texts`` are hashes; "" is none."""
        return []


def get_labeled_task(problem_type: ProblemType) -> type[LabeledTask]:
    """The task whose models have outputs of this type."""
    tasks = (TASK.get(name) for name in TASK.names())
    return next(t for t in tasks if issubclass(t, LabeledTask) and t.problem_type == problem_type)


def select_targets(values: Tensor, labels: Tensor) -> Tensor:
    """The values of the texts, or of the words, with a label: (B, ...) or (B, T, ...) -> (N, ...)."""
    if labels.is_floating_point():
        return values[~labels[:, 0].isnan()]
    return values[labels != IGNORE_INDEX]


def class_logits(model: nn.Module, inputs: EncoderBatch, host: EncoderBatch | None = None) -> Tensor:
    """Logits of the texts of a batch, (B, L), or of their tokens, (B, T, L)."""
    assert isinstance(model, Classifier | TokenClassifier)
    logits: Tensor = model(*inputs.model_args(model.config.n_segments, host))
    return logits


def open_split_labeled(recipe: Recipe, split: str) -> LabeledFiles:
    """Open the files of a split as set in the recipe; validation may be a share of the training text."""
    data = recipe.data
    files, share, is_validation = data.select_split(split)
    return open_labeled(
        files,
        format=data.format,
        text=data.text,
        label=data.label,
        validation_fraction=share,
        is_validation=is_validation,
        kind=TASK.get(recipe.task.name).label_kind,
    )


def open_labeled_store(
    recipe: Recipe, split: str, labels: Sequence[str], tokenizer: Tokenizer
) -> LabeledStore:
    """The tokenized texts of a split, built or loaded from the cache."""
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    files = open_split_labeled(recipe, split)
    store = SpanStore if files.kind in ("spans", "answers") else LabeledStore
    return store.open_or_build(files, labels, tokenizer, recipe.token_cache_dir, max_len=max_len)


def count_classes(targets: IdArray, labels: Sequence[str]) -> dict[str, int]:
    """How many of the targets are of each class."""
    counts = np.bincount(targets.astype(np.int64), minlength=len(labels)).tolist()
    return dict(zip(labels, counts, strict=True))


def report_labels(store: LabeledStore, labels: Sequence[str], report: Reporter) -> None:
    """Report how many training texts have each of the labels, the first ones by name."""
    counts = count_classes(store.labels, labels)
    texts = [tr("{label}: {count:,} texts", label=label, count=counts[label]) for label in labels[:20]]
    report_classes(counts, ", ".join(texts) + (", ..." if len(labels) > 20 else ""), report)


def report_classes(counts: Mapping[str, int], summary: str, report: Reporter) -> None:
    """Report the classes of the training text, and warn of names that look the same."""
    report.info(tr("{count} classes: {labels}", count=len(counts), labels=summary))
    if warning := describe_similar_labels(counts):
        report.info(tr("warning: {message}", message=warning))


def warn_missing_classes(task: LabeledTextTask, report: Reporter) -> None:
    """Warn if the held-out share has no text of a class, though some are expected by chance."""
    share, present = len(task.valid) / len(task.train), count_classes(task.valid.labels, task.labels)
    counts = count_classes(task.train.labels, task.labels)
    missing = [
        f"{label!r}"
        for label, count in counts.items()
        if count * share >= MIN_EXPECTED_TEXTS and not present[label]
    ]
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        report.info(
            tr(
                "warning: no validation text has the label {labels}: data.valid_fraction holds out all "
                "lines of a text; increase it, or set data.valid",
                labels=names,
            )
        )
