"""Classification of texts or pairs of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.model import QUESTION_ANSWERING, SINGLE_LABEL, TOKEN_LABELS, ProblemType
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError, unknown_name_error
from polyhead.core.i18n import tr
from polyhead.core.option_types import PositiveFloat
from polyhead.core.registry import TASK
from polyhead.data.batching.encoder_inputs import EncoderBatch, make_dummy_input
from polyhead.data.batching.length_bucketing import LengthBucketSampler, shard_rows
from polyhead.data.readers.labeled import (
    LabeledFiles,
    LabelKind,
    count_labels,
    describe_ambiguous_texts,
    describe_similar_labels,
    describe_single_class,
    open_labeled,
    read_labeled_texts,
)
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.data.stores.span_store import SpanStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts
from polyhead.evaluate.classify import calibration_error, fit_temperature, log_softmax
from polyhead.models import Classifier, TokenClassifier
from polyhead.nn.device import place_batch, to_model_device
from polyhead.nn.loss import IGNORE_INDEX, Loss
from polyhead.nn.packed_rows import token_rows
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.base import TaskLogits, get_problem_type, report_split, warn_learned_texts
from polyhead.train.tasks.objectives import Objective, SingleLabel

LABEL_KINDS: Mapping[ProblemType, LabelKind] = {
    SINGLE_LABEL: "class", "multi_label_classification": "labels", "regression": "number",
    TOKEN_LABELS: "spans", QUESTION_ANSWERING: "answers",
}  # fmt: skip
# a class without validation texts is reported if at least this many are expected; fewer may be chance
MIN_EXPECTED_TEXTS = 5


class ClassificationBatch(NamedTuple):
    """A batch: encoder inputs, and the class of each row."""

    inputs: EncoderBatch
    labels: Tensor  # (B,) int64


@TASK.register("classification")
class ClassificationTask:
    """Each text, or pair of texts, has one label; the classes are those of the training text.

    Texts are enclosed in the special tokens ``<s>`` and ``</s>``; a second text follows the first, as a
    second segment if the model has segments. Texts with more than ``data.max_len`` tokens are truncated.

    Equation: -w_y (1 - p(y | x))^gamma log p(y | x),  p = softmax(W pool(encoder(x)) + b)
    Paper: Devlin et al., 2018, sec. 4.1; token_dropout: Iyyer et al., 2015, sec. 3.2; focal: Lin et al.,
      2017; calibrate: Guo et al., 2017, sec. 4.2
    When: texts are to be classified: sentiment, topic, type of question, entailment between two texts
    Recipe: task: {name: classification, token_dropout: 0.1}
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
      class_weights: weights w of the classes in the training loss: none, balanced (inversely proportional to
        the number of texts), or a weight by label, 1 for a label that is not named
      loss: cross_entropy (gamma = 0), or focal, which reduces the loss of texts that are easy already
      focal_gamma: exponent gamma of the focal loss
      calibrate: after training, divide the logits by the temperature that minimizes the loss of the
        validation text; the classes stay the same, their probabilities become more honest
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy", "f1", "mcc")
    shard = staticmethod(shard_rows)

    def __init__(
        self,
        stores: Mapping[str, LabeledStore],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        config: TrainConfig,
        objective: Objective | None = None,
        *,
        token_dropout: float = 0.0,
        class_weights: Literal["none", "balanced"] | dict[str, PositiveFloat] = "none",
        loss: Literal["cross_entropy", "focal"] = "cross_entropy",
        focal_gamma: PositiveFloat = 2.0,
        calibrate: bool = False,
    ) -> None:
        if objective is None:
            weights = weigh_classes(class_weights, stores["train"].labels, labels)
            objective = SingleLabel(weights, focal_gamma if loss == "focal" else 0.0)
        self.objective, self.problem_type = objective, objective.problem_type
        self.title, self.usage, self.calibrates = objective.title, objective.usage, calibrate
        self.stores, self.labels = stores, tuple(labels)
        self.train, self.valid = stores["train"], stores["valid"]
        self.tokenizer, self.config, self.token_dropout = tokenizer, config, token_dropout
        self.identity = {split: stores[split].directory.name for split in ("train", "valid")}
        self.epoch_batches = self.make_sampler(self.train).epoch_batches
        self.largest_batch = self.make_sampler(self.train).largest_batch
        for split in [split for split in stores if split != "train"]:
            self.plan_eval(split)  # raises if a row is larger than a batch

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or lacks a column."""
        options = recipe.task.options
        if not 0 <= options["token_dropout"] < 1:
            raise UserError(
                "token_dropout of task 'classification' must be a fraction from 0 to below 1, not "
                f"{options['token_dropout']}"
            )
        if recipe.distill and (options["class_weights"] != "none" or options["loss"] == "focal"):
            raise UserError(
                "distill has its own loss: remove class_weights and loss of task 'classification'"
            )
        for split in recipe.data.splits:
            open_split_labeled(recipe, split)

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """All training texts, to train a tokenizer on."""
        return read_labeled_texts(open_split_labeled(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ClassificationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        return cls.open_with_labels(cls.read_classes(recipe), recipe, tokenizer, report)

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """All labels of the training text."""
        return tuple(count_labels(open_split_labeled(recipe, "train")))

    @classmethod
    def open_with_labels(
        cls, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``, with known labels."""
        stores = open_labeled_stores(recipe, labels, tokenizer, report)
        counts = report_labels(stores["train"], labels, report)
        task = cls(stores, labels, tokenizer, recipe.train, **recipe.task.options)
        texts = {split: store.hash_texts() for split, store in stores.items()}
        for split, store in stores.items():
            lines, numbers = store.line_numbers.tolist(), store.labels.tolist()
            warnings = [describe_ambiguous_texts(texts[split], numbers, lines, tr(split))]
            if split != "train":
                warnings.append(describe_single_class((labels[i] for i in set(numbers)), split))
                warn_learned_texts(split, texts[split], lines, texts["train"], report)
            for warning in filter(None, warnings):
                report.info(tr("warning: {message}", message=warning))
        if recipe.data.valid_fraction:
            task.warn_missing_classes(counts, report)
        report.info(task.make_sampler(task.train).describe())
        return task

    def warn_missing_classes(self, counts: Sequence[int], report: Reporter) -> None:
        """Warn if the held-out share has no text of a class, though some are expected by chance."""
        share = len(self.valid) / len(self.train)
        present = set(self.valid.labels.tolist())
        missing = [
            f"{self.labels[i]!r}"
            for i, count in enumerate(counts)
            if count * share >= MIN_EXPECTED_TEXTS and i not in present
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

    def retokenize(self, other_run: Run, recipe: Recipe) -> ClassificationTask:
        """The same texts, row by row, with tokenizer and max_len of another run, without token dropout."""
        limits = {"max_len": other_run.config.max_len}
        teacher_recipe = recipe.model_copy(
            update={
                "model": recipe.model.model_copy(update=limits),
                "data": recipe.data.model_copy(update=limits),
            }
        )
        stores = {
            split: open_labeled_store(teacher_recipe, split, self.labels, other_run.tokenizer)
            for split in ("train", "valid")
        }
        # with this tokenizer, a single text may be longer than ``max_tokens`` of a whole batch of the student
        max_tokens = max(self.config.max_tokens, int(stores["valid"].lengths.max()))
        config = self.config.model_copy(update={"max_tokens": max_tokens})
        return ClassificationTask(stores, self.labels, other_run.tokenizer, config)

    def collate(self, rows: np.ndarray) -> ClassificationBatch:
        """Padded batch of some training texts, with token dropout."""
        inputs, labels = self.train.collate(rows, self.tokenizer.pad_id)
        return ClassificationBatch(inputs._replace(tokens=self._drop_tokens(inputs.tokens)), labels)

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
        if not self.calibrates:
            return {}
        assert isinstance(model, Classifier)

        @torch.no_grad()
        def compute_batch(rows: IdArray) -> tuple[list[list[float]], list[int]]:
            texts, labels = to_model_device(model, self.valid.collate(rows, self.tokenizer.pad_id))
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
            texts, labels = to_model_device(model, store.collate(rows, self.tokenizer.pad_id))
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

    def make_sampler(self, store: LabeledStore) -> LengthBucketSampler:
        """Batch sampler over the texts of a store."""
        return LengthBucketSampler(store.lengths, store.lengths, self.config.max_tokens, self.config.seed)

    def eval_batches(self, split: str) -> Iterator[tuple[IdArray, ClassificationBatch]]:
        """Row numbers and batch of the texts, of every batch for evaluation."""
        store, pad_id = self.stores[split], self.tokenizer.pad_id
        return ((rows, ClassificationBatch(*store.collate(rows, pad_id))) for rows in self.plan_eval(split))

    def plan_eval(self, split: str) -> list[IdArray]:
        """The texts of every batch for evaluation."""
        return self.make_sampler(self.stores[split]).epoch_batches()

    def _drop_tokens(self, tokens: Tensor) -> Tensor:
        """Replace a share of the tokens by the mask, drawn from torch's generator: (B, T) -> (B, T)."""
        if not self.token_dropout:
            return tokens
        special = torch.isin(tokens, torch.tensor(self.tokenizer.special_ids))
        hidden = (torch.rand(tokens.shape) < self.token_dropout) & ~special
        return tokens.masked_fill(hidden, self.tokenizer.mask_id)


def select_targets(values: Tensor, labels: Tensor) -> Tensor:
    """The values of the texts, or of the words, with a label: (B, ...) or (B, T, ...) -> (N, ...)."""
    if labels.is_floating_point():
        return values[~labels[:, 0].isnan()]
    return values[labels != IGNORE_INDEX]


def weigh_classes(
    choice: str | Mapping[str, float], targets: IdArray, labels: Sequence[str]
) -> Tensor | None:
    """The weight of each class: (L,); None if all are 1. The mean over the training texts is 1."""
    counts = np.bincount(targets, minlength=len(labels))
    if choice == "none":
        return None
    if isinstance(choice, Mapping):
        for label in choice:
            if label not in labels:
                raise unknown_name_error("label in class_weights", label, labels)
        weights = np.array([choice.get(label, 1.0) for label in labels])
        weights *= counts.sum() / (counts @ weights)
    else:
        weights = counts.sum() / (len(counts) * np.maximum(counts, 1))
    return torch.tensor(weights, dtype=torch.float32)


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
        kind=LABEL_KINDS[get_problem_type(TASK.get(recipe.task.name))],
    )


def open_labeled_stores(
    recipe: Recipe, labels: Sequence[str], tokenizer: Tokenizer, report: Reporter
) -> dict[str, LabeledStore]:
    """The tokenized texts of all splits, reported."""
    stores = {split: open_labeled_store(recipe, split, labels, tokenizer) for split in recipe.data.splits}
    for split, store in stores.items():
        report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
    return stores


def report_labels(store: LabeledStore, labels: Sequence[str], report: Reporter) -> list[int]:
    """Report the labels of the training text; returns how many texts have each."""
    counts: list[int] = np.bincount(store.labels, minlength=len(labels)).tolist()
    summary = ", ".join(
        tr("{label}: {count:,} texts", label=label, count=count)
        for label, count in zip(labels[:20], counts, strict=False)
    )
    summary += ", ..." if len(labels) > 20 else ""
    report.info(tr("{count} classes: {labels}", count=len(labels), labels=summary))
    if warning := describe_similar_labels(dict(zip(labels, counts, strict=True))):
        report.info(tr("warning: {message}", message=warning))
    return counts


def open_labeled_store(
    recipe: Recipe, split: str, labels: Sequence[str], tokenizer: Tokenizer
) -> LabeledStore:
    """The tokenized texts of a split, built or loaded from the cache."""
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    files = open_split_labeled(recipe, split)
    store = SpanStore if files.kind in ("spans", "answers") else LabeledStore
    return store.open_or_build(files, labels, tokenizer, recipe.token_cache_dir, max_len=max_len)
