"""Compare classifiers: accuracy, F1 and Matthews correlation on the same texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import (
    BootstrapTest,
    class_statistics,
    f1_from_sums,
    matthews_from_sums,
)
from polyhead.compare.tasks.base import COMPARED_TASKS, EvalBatch, PageWords, make_measure, pick_eval_split
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.readers.labeled import collect_labels
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.evaluate.classify import class_measures
from polyhead.models import Classifier
from polyhead.nn.device import to_model_device
from polyhead.run.run import Run
from polyhead.train.tasks.classification import ClassificationTask, open_labeled_store, open_split_labeled


class EvaluatedTexts(NamedTuple):
    """Losses, predictions and labels of some texts, in their order."""

    nll: list[float]
    predictions: list[int]
    labels: list[int]


@COMPARED_TASKS.register("classification")
class ComparedClassification:
    """Compare classifiers; a unit is a text."""

    measures = (
        make_measure("loss"),
        make_measure("accuracy"),
        make_measure("f1", BootstrapTest(f1_from_sums)),
        make_measure("mcc", BootstrapTest(matthews_from_sums)),
    )
    page_words = PageWords("texts", "forward pass, per text", counted_unit="text", has_fixed_units=True)

    def read_labels(self, recipe: Recipe) -> tuple[str, ...]:
        """Class labels of the training texts."""
        return collect_labels(open_split_labeled(recipe, "train"))

    def tokens_per_step(self, task: ClassificationTask) -> float:
        """Mean number of texts in a batch."""
        return average_batch_size(task)

    def typical_batch(self, task: ClassificationTask) -> EvalBatch:
        """The validation batch of the median length."""
        lengths = task.valid.lengths
        batches = sorted(task.valid_batches, key=lambda rows: int(lengths[rows].max()))
        return make_class_batch(task, batches[len(batches) // 2])

    def eval_batches(self, task: ClassificationTask) -> Iterator[EvalBatch]:
        """Batches of the validation texts."""
        return (make_class_batch(task, rows) for rows in task.valid_batches)

    def evaluate(self, run: Run, recipe: Recipe, task: ClassificationTask) -> tuple[JsonDict, JsonDict]:
        """Loss on the validation texts; the other metrics on the test texts, if there are any."""
        assert isinstance(run.model, Classifier)
        store = task.valid
        text = valid = evaluate_texts(run.model, task, store)
        if recipe.data.test:
            store = open_labeled_store(recipe, "test", task.labels, run.tokenizer)
            text = evaluate_texts(run.model, task, store)
        measures = class_measures(text.predictions, text.labels, task.labels)
        results = {
            "split": pick_eval_split(recipe),
            **loss_and_ppl(sum(valid.nll), len(valid.nll)),
            **{name: measures[name] for name in ("accuracy", "f1", "mcc")},
            "signatures": {},
            "left_out": str(store.report) if store.report.used < store.report.total else "",
        }
        outputs = {
            "nll": valid.nll,
            "given": text.predictions,
            "wanted": text.labels,
            "labels": len(task.labels),
        }
        return results, outputs

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """Loss of every text, its predicted class and its label."""
        predicted, expected = np.asarray(outputs["given"]), np.asarray(outputs["wanted"])
        classes = class_statistics(outputs["given"], outputs["wanted"], outputs["labels"])
        correct = np.stack([predicted == expected, np.ones(len(predicted))], 1).astype(np.float64)
        loss = np.stack([outputs["nll"], np.ones(len(outputs["nll"]))], 1)
        return {"loss": loss, "accuracy": correct, "f1": classes, "mcc": classes}

    def measure_decode_speed(self, run: Run, recipe: Recipe) -> None:
        """None: nothing is decoded."""

    def encode_memory(self, run: Run) -> None:
        """None: there is no decoder."""


def make_class_batch(task: ClassificationTask, rows: np.ndarray) -> EvalBatch:
    """Evaluation batch of validation texts."""
    inputs, labels = task.valid.collate(rows, task.tokenizer.pad_id)

    def pool_features(model: Classifier) -> Tensor:
        device_inputs = to_model_device(model, inputs)
        out: Tensor = model.pooler(
            model.encoder(*device_inputs.model_args(model.config.n_segments)), device_inputs.pos
        )
        return out

    token_masks = {"encoder": None if inputs.pos is None else inputs.pos >= 0}
    return EvalBatch(pool_features, len(labels), token_masks, head="classifier")


@torch.no_grad()
def evaluate_texts(model: Classifier, task: ClassificationTask, store: LabeledStore) -> EvaluatedTexts:
    """Evaluate a model on all texts of a store."""
    by_row: dict[int, tuple[float, int, int]] = {}
    for rows in task.make_sampler(store).epoch_batches():
        inputs, labels = to_model_device(model, store.collate(rows, task.tokenizer.pad_id))
        log_p = model.eval()(*inputs.model_args(model.config.n_segments)).double().log_softmax(-1)
        nll = -log_p.gather(1, labels[:, None]).flatten()
        row_results = zip(nll.tolist(), log_p.argmax(1).tolist(), labels.tolist(), strict=True)
        by_row |= dict(zip(rows.tolist(), row_results, strict=True))
    return EvaluatedTexts(*map(list, zip(*(by_row[row] for row in sorted(by_row)), strict=True)))
