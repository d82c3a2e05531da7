"""Learning which class a text, or a pair of texts, belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.analysis.class_metrics import class_measures
from polyhead.core.i18n import tr
from polyhead.data.batches import ByLength, deal
from polyhead.data.framed import FramedBatch
from polyhead.data.labelled import Labelled, labels_of, open_labelled, texts
from polyhead.data.labelled_store import LabelledStore
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, class_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models import Classifier
from polyhead.nn.loss import Loss, classification
from polyhead.nn.place import beside
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks.base import Scores, say_split

FEW = 5  # texts of a class that a share would hold out by chance: fewer may be missing without a reason


class Examples(NamedTuple):
    """A batch: what the encoder reads, and the class of each row."""

    given: FramedBatch
    labels: Tensor  # (B,) int64


@TASK.register("classification")
class Classification:
    """Each text, or pair of texts, has one label; the classes are those of the training text.

    Texts stand between the special tokens ``<s>`` and ``</s>``; a second one follows the first, and counts as another
    segment where the model has segments. Texts with more than ``data.max_len`` tokens are cut.

    Equation: -log p(y | x),  p = softmax(W pool(encoder(x)) + b)
    Paper: Devlin et al., 2018, sec. 4.1; token_dropout: Iyyer et al., 2015, sec. 3.2
    When: texts shall be sorted: sentiment, topics, kinds of questions, whether one follows from another
    Recipe: task: {name: classification, token_dropout: 0.1}
    Options:
      token_dropout: share of the tokens that are hidden while it learns, others each time; for small data
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy", "f1", "mcc")
    title = "A classifier"
    use = "polyhead classify . input.txt"

    def __init__(
        self,
        train: LabelledStore,
        valid: LabelledStore,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        config: TrainConfig,
        *,
        token_dropout: float = 0.0,
    ) -> None:
        self.train, self.valid, self.labels = train, valid, tuple(labels)
        self.tokenizer, self.config, self.token_dropout = tokenizer, config, token_dropout
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.valid_batches = self.by_length(valid).plan()

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and has the columns, or a UserError says what is wrong."""
        dropped = recipe.task.options["token_dropout"]
        if not 0 <= dropped < 1:
            raise UserError(
                f"token_dropout of task 'classification' is a share from 0 to below 1, not {dropped}"
            )
        for split in recipe.data.splits:
            labelled_of(recipe, split)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """Every training text."""
        return texts(labelled_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Classification:
        """With its token stores made or found."""
        return cls.open_with(cls.classes(recipe), recipe, tokenizer, report)

    @classmethod
    def classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """Every label of the training text."""
        return labels_of(labelled_of(recipe, "train"))

    @classmethod
    def open_with(
        cls, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> Classification:
        """The same, where the labels are known."""
        stores = {split: store_of(recipe, split, labels, tokenizer) for split in recipe.data.splits}
        for split, store in stores.items():
            say_split(report, split, store.report.describe())
        train, valid = stores["train"], stores["valid"]
        counts = np.bincount(train.labels, minlength=len(labels)).tolist()
        shown = ", ".join(f"{label} {count:,}" for label, count in zip(labels[:20], counts, strict=False))
        report.say(
            tr(
                "{count} classes: {labels}",
                count=len(labels),
                labels=shown + (", ..." if len(labels) > 20 else ""),
            )
        )
        task = cls(train, valid, labels, tokenizer, recipe.train, **recipe.task.options)
        if recipe.data.valid_share:
            task.warn_of_missing(counts, report)
        if "test" in stores:
            task.by_length(stores["test"]).plan()  # a row that is larger than a batch is told now
        report.say(task.by_length(train).described())
        return task

    def warn_of_missing(self, counts: Sequence[int], report: Reporter) -> None:
        """Say so where the share that is held out has no text of a class of which it would have some by chance."""
        share = len(self.valid) / len(self.train)
        there = set(self.valid.labels.tolist())
        missing = [
            f"{self.labels[i]!r}" for i, count in enumerate(counts) if count * share >= FEW and i not in there
        ]
        if missing:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            report.say(
                tr(
                    "warning: no validation text has the label {labels}: data.valid_share takes one line in so many, and "
                    "labels take turns in these; shuffle the lines, or name files in data.valid",
                    labels=some,
                )
            )

    def read_by(self, other: Run, recipe: Recipe) -> Classification:
        """The same texts, row by row, in the tokens of another model, none of them hidden, and as long as it can read."""
        longest = {"max_len": other.config.max_len}
        itself = recipe.model_copy(
            update={
                "model": recipe.model.model_copy(update=longest),
                "data": recipe.data.model_copy(update=longest),
            }
        )
        train, valid = (store_of(itself, split, self.labels, other.tokenizer) for split in ("train", "valid"))
        # a text that is one row of the student's batches may be longer than all of one in these tokens
        tokens = max(self.config.max_tokens, int(valid.lengths.max()))
        config = self.config.model_copy(update={"max_tokens": tokens})
        return Classification(train, valid, self.labels, other.tokenizer, config)

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """The rows of every batch of an epoch, in order."""
        return self.by_length(self.train).plan(epoch)

    def hardest(self) -> np.ndarray:
        """The rows of the batch that needs the most memory; no epoch has a larger one."""
        return self.by_length(self.train).hardest()

    def deal(self, rows: np.ndarray, n: int) -> list[np.ndarray]:
        """The rows of a batch in n parts, or fewer, for as many processes."""
        return deal(rows, n)

    def batch(self, rows: np.ndarray) -> Examples:
        """Padded tensors of some training texts, some of their tokens hidden."""
        given, labels = self.train.batch(rows, self.tokenizer.pad_id)
        return Examples(given._replace(tokens=self._hide(given.tokens)), labels)

    def count(self, batch: Examples) -> int:
        """Texts."""
        return len(batch.labels)

    def loss(self, model: nn.Module, batch: Examples) -> Loss:
        """Label-smoothed cross-entropy as sums."""
        batch = beside(model, batch)
        return classification(_scores(model, batch.given), batch.labels, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Examples) -> Scores:
        """Of every text."""
        assert isinstance(model, Classifier)
        batch = beside(model, batch)
        given = batch.given.called(model.config.segments)
        hidden, pos = model.encoder(*given), batch.given.pos
        logits = model.classifier(model.dropout(model.pooler(hidden, pos)))
        return Scores(logits, batch.labels, hidden.flatten(0, 1) if pos is None else hidden[pos >= 0])

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss without smoothing, accuracy, macro F1 and Matthews correlation of the validation texts."""
        return self._measured(model, self.valid, self.valid_batches, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """The same of the validation and, where there is one, the test text."""
        recipe, splits = run.recipe, {"valid": self.valid}
        assert recipe is not None
        if recipe.data.test:
            splits["test"] = store_of(recipe, "test", self.labels, run.tokenizer)
        facts: dict[str, str] = {}
        for split, store in splits.items():
            if split == "test" and store.report.kept < store.report.read:
                facts["test texts"] = str(store.report)
            measured = self._measured(run.model, store, self.by_length(store).plan(), each)
            facts |= {f"{split} {name}": f"{value:.4f}" for name, value in measured.items()}
        return facts

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Texts of each class."""
        counts = np.bincount(self.train.labels, minlength=len(self.labels)).tolist()
        return TrainingCounts(labels=dict(zip(self.labels, counts, strict=True)))

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of one class for all texts."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else store_of(run.recipe, split, self.labels, run.tokenizer)
        return class_baselines(counts.labels, store.labels, self.labels)

    def by_length(self, store: LabelledStore) -> ByLength:
        """Some texts in batches."""
        return ByLength(store.lengths, store.lengths, self.config.max_tokens, self.config.seed)

    def _hide(self, tokens: Tensor) -> Tensor:
        """(B, T) with a share of the tokens of the texts replaced by the mask, drawn from torch's generator."""
        if not self.token_dropout:
            return tokens
        special = torch.isin(tokens, torch.tensor(self.tokenizer.special_ids))
        hidden = (torch.rand(tokens.shape) < self.token_dropout) & ~special
        return tokens.masked_fill(hidden, self.tokenizer.mask_id)

    @torch.no_grad()
    def _measured(
        self, model: nn.Module, store: LabelledStore, batches: Sequence[np.ndarray], each: Each
    ) -> dict[str, float]:
        def judge(rows: np.ndarray) -> tuple[float, list[int], list[int]]:
            texts, labels = beside(model, store.batch(rows, self.tokenizer.pad_id))
            scores = _scores(model, texts)
            return float(classification(scores, labels).nll), scores.argmax(-1).tolist(), labels.tolist()

        nll, given, wanted = zip(*each(judge, batches), strict=True)
        classes = class_measures(list(chain(*given)), list(chain(*wanted)), self.labels)
        return {"loss": sum(nll) / len(store)} | classes


def _scores(model: nn.Module, given: FramedBatch) -> Tensor:
    assert isinstance(model, Classifier)
    logits: Tensor = model(*given.called(model.config.segments))
    return logits


def labelled_of(recipe: Recipe, split: str) -> Labelled:
    """The files of a split as the recipe says they are read; validation may be a share of the training text."""
    data = recipe.data
    files, share, held = data.part(split)
    return open_labelled(files, format=data.format, text=data.text, label=data.label, share=share, held=held)


def store_of(recipe: Recipe, split: str, labels: Sequence[str], tokenizer: Tokenizer) -> LabelledStore:
    """The texts of a split as tokens, made or found."""
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    return LabelledStore.open_or_build(
        labelled_of(recipe, split), labels, tokenizer, recipe.stores, max_len=max_len
    )
