"""Classifiers compared: how often they are right about the same texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.analysis.class_metrics import class_measures
from polyhead.compare.measure import counted, loss_and_ppl
from polyhead.compare.significance import Floats, class_statistics, f1_of, matthews_of, mean_of
from polyhead.compare.tasks.base import COMPARED, Found, Measure, Piece, Words, measured_split
from polyhead.data.labelled import labels_of
from polyhead.data.labelled_store import LabelledStore
from polyhead.models import Classifier
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.classification import Classification, labelled_of, store_of


class Judged(NamedTuple):
    """What a classifier made of some texts, in their order."""

    nll: list[float]
    given: list[int]
    wanted: list[int]


@COMPARED.register("classification")
class Classifiers:
    """A unit is a text."""

    measures = (
        Measure("loss", "loss", "validation loss", mean_of, True, 3, 3),
        Measure("accuracy", "accuracy", "accuracy", mean_of, False, 4, 3),
        Measure("f1", "macro F1", "macro F1", f1_of, False, 4, 3),
        Measure("mcc", "MCC", "Matthews correlation", matthews_of, False, 3, 3),
    )
    words = Words("texts", "of a forward pass, for each text", each="text", given=True)

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """The classes of the training texts."""
        return labels_of(labelled_of(recipe, "train"))

    def tokens_per_step(self, task: Classification) -> float:
        """The mean number of texts in a batch."""
        return counted(task)

    def typical(self, task: Classification) -> Piece:
        """The validation batch of the median length."""
        lengths = task.valid.lengths
        batches = sorted(task.valid_batches, key=lambda rows: int(lengths[rows].max()))
        return piece(task, batches[len(batches) // 2])

    def pieces(self, task: Classification) -> Iterator[Piece]:
        """The validation texts."""
        return (piece(task, rows) for rows in task.valid_batches)

    def quality(self, run: Run, recipe: Recipe, task: Classification) -> tuple[Found, Found]:
        """Loss of the validation texts; how often the test texts, if there are any, got their class."""
        assert isinstance(run.model, Classifier)
        store = task.valid
        text = valid = judged(run.model, task, store)
        if recipe.data.test:
            store = store_of(recipe, "test", task.labels, run.tokenizer)
            text = judged(run.model, task, store)
        measures = class_measures(text.given, text.wanted, task.labels)
        found = {
            "split": measured_split(recipe),
            **loss_and_ppl(sum(valid.nll), len(valid.nll)),
            **{name: measures[name] for name in ("accuracy", "f1", "mcc")},
            "signatures": {},
            "left_out": str(store.report) if store.report.kept < store.report.read else "",
        }
        kept = {"nll": valid.nll, "given": text.given, "wanted": text.wanted, "labels": len(task.labels)}
        return found, kept

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """The loss of every text, and the class that it was given and should have been."""
        given, wanted = np.asarray(kept["given"]), np.asarray(kept["wanted"])
        classes = class_statistics(kept["given"], kept["wanted"], kept["labels"])
        right = np.stack([given == wanted, np.ones(len(given))], 1).astype(np.float64)
        loss = np.stack([kept["nll"], np.ones(len(kept["nll"]))], 1)
        return {"loss": loss, "accuracy": right, "f1": classes, "mcc": classes}

    def decode_speed(self, run: Run, recipe: Recipe) -> None:
        """Nothing is decoded."""

    def memory(self, run: Run) -> None:
        """There is no decoder."""


def piece(task: Classification, rows: np.ndarray) -> Piece:
    """A batch of validation texts as it is measured."""
    given, labels = task.valid.batch(rows, task.tokenizer.pad_id)

    def pooled(model: Classifier) -> Tensor:
        here = beside(model, given)
        out: Tensor = model.pooler(model.encoder(*here.called(model.config.segments)), here.pos)
        return out

    real = {"encoder": None if given.pos is None else given.pos >= 0}
    return Piece(pooled, len(labels), real, head="classifier")


@torch.no_grad()
def judged(model: Classifier, task: Classification, store: LabelledStore) -> Judged:
    """Every text of a store by a model."""
    found: dict[int, tuple[float, int, int]] = {}
    for rows in task.by_length(store).plan():
        given, labels = beside(model, store.batch(rows, task.tokenizer.pad_id))
        log_p = model.eval()(*given.called(model.config.segments)).double().log_softmax(-1)
        nll = -log_p.gather(1, labels[:, None]).flatten()
        told = zip(nll.tolist(), log_p.argmax(1).tolist(), labels.tolist(), strict=True)
        found |= dict(zip(rows.tolist(), told, strict=True))
    return Judged(*map(list, zip(*(found[row] for row in sorted(found)), strict=True)))
