"""Protocols of training tasks: data, loss, evaluation and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from polyhead.config.recipe import Recipe
from polyhead.core.i18n import tr
from polyhead.data.readers.conversations import ConversationReport
from polyhead.data.readers.parallel_corpus import CorpusReport
from polyhead.evaluate.baselines import Baselines, TrainingCounts
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn, TrainingTask
from polyhead.train.tasks.corpora import CorpusShare


class TaskLogits(NamedTuple):
    """Logits and hidden states of a batch, for distillation."""

    logits: Tensor  # (N, L) at positions with a label
    labels: Tensor  # (N,)
    hidden_states: Tensor  # (M, C) last hidden states of all tokens except padding
    host_labels: Tensor  # the labels on the CPU


def report_split(
    report: Reporter, split: str, *counts: str, unknown: UnknownTokens = UnknownTokens()
) -> None:
    """Report the counts of a split: 'train: train.en + train.de: 40 of 40 pairs', and unknown tokens."""
    counts += (unknown.describe(),) if unknown.unknown else ()
    report.info(tr("{name}: {value}", name=tr(split), value=tr(", ").join(counts)))
    if unknown.is_frequent:
        report.info(unknown.describe_warning())


def warn_learned_texts(
    split: str,
    texts: Sequence[int],
    lines: Sequence[int] | None,
    training_texts: Sequence[int],
    report: Reporter,
) -> None:
    """Warn of texts of a split, given by their hashes, that the training text has too.

    Without ``lines``, the first one is named by its number among the texts.
    """
    known = set(training_texts)
    learned = [i for i, text in enumerate(texts) if text in known]
    if learned:
        line = tr(
            "warning: {split}: {count:,} of {total:,} texts are also in the training text (first: {first})",
            split=tr(split),
            count=len(learned),
            total=len(texts),
            first=tr("text {number:,}", number=learned[0] + 1)
            if lines is None
            else tr("line {number:,}", number=lines[learned[0]]),
        )
        report.info(line)


def warn_if_few_used(counts: CorpusReport | ConversationReport, recipe: Recipe, report: Reporter) -> None:
    """Warn if more than half of a text is skipped, and which key to raise for examples that are too long."""
    if 2 * counts.used >= counts.total:
        return
    limits = {"data.max_len": recipe.data.max_len, "model.max_len": recipe.model.max_len}
    max_len = min(limits.values())
    keys = tr(" and ").join(key for key, limit in limits.items() if limit == max_len)
    line = tr(
        "warning: {where}: {kept:,} of {read:,} are used, the others are skipped",
        where=counts.source_label,
        kept=counts.used,
        read=counts.total,
    )
    if counts.too_long:
        line += tr(
            "; {count:,} are longer than {most:,} tokens: raise {keys}, or split them",
            count=counts.too_long,
            most=max_len,
            keys=keys,
        )
    report.info(line)


class Task(TrainingTask, Protocol):
    """An opened task: with the data of one run."""

    identity: dict[str, str]  # digests of the text, so that a run is not resumed on another
    title: str  # title of the run's README.md
    usage: str  # example command that uses the run
    labels: tuple[str, ...]  # classes, for a classification task
    stores: Mapping[str, Any]  # the tokens of each split
    shares: Sequence[CorpusShare]  # of each of several training corpora

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Metrics of a model on a split, the loss first; ``map_fn`` shares the batches over ranks."""

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Metrics of the final weights besides the loss, formatted for the README.md."""

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the training text that the baselines need."""

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines of the validation or test split, by metric."""


@runtime_checkable
class SupportsDistillation(Task, Protocol):
    """A task whose loss is computed from logits, so that a teacher can be distilled."""

    def compute_logits(self, model: nn.Module, batch: Any) -> TaskLogits:
        """Logits of a batch."""


class TaskFactory(Protocol):
    """A registered task, before its data is opened."""

    kind: str  # kind of model that it trains
    label_smoothing: float  # default, if the recipe does not set it
    metrics: tuple[str, ...]  # metrics that can select the best checkpoint

    def check(self, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or has the wrong format."""

    def iter_texts(self, recipe: Recipe) -> Iterator[str]:
        """The texts that a tokenizer is trained on."""

    def open(self, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Task:
        """Open the task with its tokenized text. Errors in the test text are raised here, before training."""


@runtime_checkable
class HasClasses(TaskFactory, Protocol):
    """A task whose classes are those of its training text."""

    def read_classes(self, recipe: Recipe) -> tuple[str, ...]:
        """The classes of the training text."""

    def open_with_labels(
        self, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> Task:
        """As ``open``, with known classes; the text need not have all of them."""
