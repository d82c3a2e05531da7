"""Compare classifiers: accuracy, F1 and Matthews correlation on the same texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import BootstrapTest, class_statistics, f1_from_sums, matthews_from_sums
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    EvalBatch,
    PageWords,
    decode_nothing,
    make_measure,
    pick_eval_split,
)
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.evaluate.classify import class_measures
from polyhead.models import Classifier
from polyhead.nn.device import to_model_device
from polyhead.run.run import Run
from polyhead.train.tasks.classification import ClassificationBatch, LabeledTextTask


class EvaluatedTexts(NamedTuple):
    """Losses, predictions and labels of some texts, in their order."""

    nll: list[float]
    predictions: list[int]
    labels: list[int]


def make_class_batch(batch: ClassificationBatch) -> EvalBatch:
    """Evaluation batch of texts."""
    inputs, labels = batch

    def pool_features(model: Classifier) -> Tensor:
        device_inputs = to_model_device(model, inputs)
        out: Tensor = model.pooler(
            model.encoder(*device_inputs.model_args(model.config.n_segments)), device_inputs.pos
        )
        return out

    token_masks = {"encoder": None if inputs.pos is None else inputs.pos >= 0}
    return EvalBatch(pool_features, len(labels), token_masks, head="classifier")


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
    tokens_per_step = staticmethod(average_batch_size)
    measure_decode_speed = encode_memory = staticmethod(decode_nothing)

    def typical_batch(self, task: LabeledTextTask) -> EvalBatch:
        """The validation batch of the median length."""
        lengths = task.valid.lengths
        batches = sorted(task.plan_eval("valid"), key=lambda rows: int(lengths[rows].max()))
        return make_class_batch(task.make_batch("valid", batches[len(batches) // 2]))

    make_batch = staticmethod(make_class_batch)

    def evaluate(self, run: Run, recipe: Recipe, task: LabeledTextTask) -> tuple[JsonDict, JsonDict]:
        """Loss on the validation texts; the other metrics on the test texts, if there are any."""
        assert isinstance(run.model, Classifier)
        split = pick_eval_split(recipe)
        text = valid = evaluate_texts(run.model, task, "valid")
        if split == "test":
            text = evaluate_texts(run.model, task, split)
        report = task.stores[split].report
        measures = class_measures(text.predictions, text.labels, task.labels)
        results = {
            "split": split,
            **loss_and_ppl(sum(valid.nll), len(valid.nll)),
            **{name: measures[name] for name in ("accuracy", "f1", "mcc")},
            "signatures": {},
            "left_out": str(report) if report.used < report.total else "",
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


@torch.no_grad()
def evaluate_texts(model: Classifier, task: LabeledTextTask, split: str) -> EvaluatedTexts:
    """Evaluate a model on all texts of a split."""
    by_row: dict[int, tuple[float, int, int]] = {}
    for rows, batch in task.eval_batches(split):
        inputs, labels = to_model_device(model, batch)
        log_p = model.eval()(*inputs.model_args(model.config.n_segments)).double().log_softmax(-1)
        nll = -log_p.gather(1, labels[:, None]).flatten()
        row_results = zip(nll.tolist(), log_p.argmax(1).tolist(), labels.tolist(), strict=True)
        by_row |= dict(zip(rows.tolist(), row_results, strict=True))
    return EvaluatedTexts(*map(list, zip(*(by_row[row] for row in sorted(by_row)), strict=True)))
